//! The `params.json` of Mistral's own releases, of models with attention over latents and experts: read as
//! the Hugging Face config that says the same, so that both are understood in one place.

use super::ImportError;
use super::draft::{Draft, Naming};
use super::families::mistral4;
use super::family;
use super::keys::{Findings, Keys};
use crate::blocks::vision::import as vision;
use serde_json::{Map, Value, json};

/// The file's name.
pub const FILE: &str = "params.json";

/// Keys that name settings, the object around one before a dot; the keys that a Hugging Face config has for
/// them; and whether they must be there. What must be there has a default in transformers that is another
/// model's.
const KEYS: [(&str, &str, bool); 30] = [
    ("dim", "hidden_size", true),
    ("n_layers", "num_hidden_layers", true),
    ("hidden_dim", "intermediate_size", true),
    ("n_heads", "num_attention_heads", true),
    ("n_kv_heads", "num_key_value_heads", true),
    ("head_dim", "head_dim", false),
    ("norm_eps", "rms_norm_eps", true),
    ("vocab_size", "vocab_size", true),
    ("tied_embeddings", "tie_word_embeddings", false),
    ("activation", "hidden_act", false),
    ("dtype", "dtype", false),
    ("q_lora_rank", "q_lora_rank", true),
    ("kv_lora_rank", "kv_lora_rank", true),
    ("qk_nope_head_dim", "qk_nope_head_dim", true),
    ("qk_rope_head_dim", "qk_rope_head_dim", true),
    ("v_head_dim", "v_head_dim", true),
    ("rope_theta", "rope_parameters.rope_theta", true),
    ("yarn.factor", "rope_parameters.factor", true),
    ("yarn.original_max_position_embeddings", "rope_parameters.original_max_position_embeddings", true),
    ("yarn.beta", "rope_parameters.beta_fast", true),
    ("yarn.alpha", "rope_parameters.beta_slow", true),
    ("llama_4_scaling.beta", "rope_parameters.llama_4_scaling_beta", true),
    ("moe.num_experts", "n_routed_experts", true),
    ("moe.num_experts_per_tok", "num_experts_per_tok", true),
    ("moe.expert_hidden_dim", "moe_intermediate_size", true),
    ("moe.num_shared_experts", "n_shared_experts", true),
    ("moe.first_k_dense_replace", "first_k_dense_replace", false),
    ("moe.routed_scale", "routed_scaling_factor", false),
    ("moe.num_expert_groups", "n_group", false),
    ("moe.num_expert_groups_per_tok", "topk_group", false),
];

/// Objects of settings.
const OBJECTS: [&str; 3] = ["moe", "yarn", "llama_4_scaling"];

/// Reads the file.
pub(super) fn read(params: &Map<String, Value>) -> Result<Draft, ImportError> {
    let mut found = Findings::default();
    let (config, encoder) = config_of(params, &mut found);
    let draft = family::read(&config);
    let mut problems = found.problems;
    let draft = match draft {
        Ok(draft) if problems.is_empty() => draft,
        Ok(_) => return Err(ImportError { problems }),
        Err(error) => {
            problems.extend(error.problems.iter().map(|problem| own_words(problem)));
            return Err(ImportError { problems });
        }
    };
    let defaulted = draft.defaulted.iter().map(|key| own_key(key).unwrap_or(key).to_owned()).collect();
    // What transformers makes of its own config is no matter here.
    let mut notes: Vec<String> =
        draft.notes.iter().filter(|note| !note.contains("mscale_all_dim")).cloned().collect();
    notes.extend(found.notes);
    let towers = if encoder.is_some() { mistral4::OWN_TOWERS } else { &[] };
    let tower = encoder.map(|encoder| match encoder {
        Value::Object(encoder) => vision::read_params(encoder),
        other => Err(vec![format!("`vision_encoder` is {other}: an object is wanted")]),
    });
    let naming = Naming { towers, ..mistral4::OWN_NAMES };
    Ok(Draft { defaulted, notes, naming, tower, ..draft })
}

/// The config in Hugging Face's words, and what is said of a vision tower.
fn config_of<'a>(
    params: &'a Map<String, Value>,
    found: &mut Findings,
) -> (Map<String, Value>, Option<&'a Value>) {
    let empty = Map::new();
    let mut outer = Keys::new(params, "");
    let mut objects = OBJECTS.map(|name| {
        let map = match outer.given(name) {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => {
                found.problems.push(format!("`{name}` is {other}: an object is wanted"));
                &empty
            }
        };
        Keys::new(map, &format!("{name}."))
    });
    let mut config = Map::new();
    let mut rope = Map::new();
    for (own, theirs, needed) in KEYS {
        let (keys, key) = match own.split_once('.') {
            None => (&mut outer, own),
            Some((object, key)) => {
                let at = OBJECTS.iter().position(|name| *name == object).expect("all are listed");
                (&mut objects[at], key)
            }
        };
        match (keys.get(key), theirs.strip_prefix("rope_parameters.")) {
            (Some(value), None) => drop(config.insert(theirs.to_owned(), value.clone())),
            (Some(value), Some(theirs)) => drop(rope.insert(theirs.to_owned(), value.clone())),
            (None, _) if needed => found.problems.push(format!("`{own}` is missing")),
            (None, _) => {}
        }
    }
    let [moe, yarn, growth] = &mut objects;
    experts(moe, found);
    config.insert("norm_topk_prob".to_owned(), json!(true));
    scaling(yarn, growth, &mut rope, found);
    rope.insert("rope_type".to_owned(), json!("yarn"));
    config.insert("rope_parameters".to_owned(), Value::Object(rope));
    // Older files call it otherwise.
    let context = [outer.given("max_position_embeddings"), outer.given("max_seq_len")];
    if let Some(context) = context.into_iter().flatten().next() {
        config.insert("max_position_embeddings".to_owned(), context.clone());
    }
    if let Some(quantisation) = outer.given("quantization") {
        config.insert("quantization_config".to_owned(), hyphenated(quantisation));
    }
    outer.harmless(&["vision_encoder"]);
    let encoder = params.get("vision_encoder").filter(|encoder| !encoder.is_null());
    config.insert("model_type".to_owned(), json!(mistral4::NAME));
    // Said by no key: `</s>` of the tokenizer that goes with it ends an answer, and pairs are neighbours.
    config.insert("eos_token_id".to_owned(), json!(2));
    config.insert("rope_interleave".to_owned(), json!(true));
    outer.only(found, "sliding_window", &[Value::Null], "sliding windows are not known of this family");
    outer.only(found, "use_biases", &[json!(false), Value::Null], "biases are not known of this family");
    outer.harmless(&["model_type"]);
    outer.finish(found, FILE);
    objects.into_iter().for_each(|keys| keys.finish(found, FILE));
    (config, encoder)
}

/// What else is said of experts.
fn experts(moe: &mut Keys, found: &mut Findings) {
    moe.only(found, "route_every_n", &[json!(1), Value::Null], "every layer has experts, but for the first");
    let strategies = [json!("WEIGHTS"), Value::Null];
    moe.only(found, "renorm_strategy", &strategies, "only weights that are divided by their sum are known");
    let none = [json!(false), Value::Null];
    moe.only(found, "use_load_balancing_bias", &none, "experts are chosen by their scores alone");
    moe.harmless(&["expert_parallel", "expert_model_parallel"]);
}

/// What positions scale besides the frequencies: scores, if it is said so, and queries.
fn scaling(yarn: &mut Keys, growth: &mut Keys, rope: &mut Map<String, Value>, found: &mut Findings) {
    match yarn.get("apply_scale") {
        Some(Value::Bool(false)) => drop(rope.insert("attention_factor".to_owned(), json!(1.0))),
        Some(Value::Bool(true)) => {
            rope.extend(["mscale", "mscale_all_dim"].map(|key| (key.to_owned(), json!(1.0))));
            found.notes.push("yarn.apply_scale: YaRN multiplies scores, as transformers does.".to_owned());
        }
        other => {
            let shown = other.map_or("missing".to_owned(), Value::to_string);
            let wanted = "`true` or `false` is wanted, whether YaRN multiplies scores";
            found.problems.push(format!("`yarn.apply_scale` is {shown}: {wanted}"));
        }
    }
    let key = "original_max_position_embeddings";
    let (of_queries, of_pairs) = (growth.get(key), yarn.get(key));
    if of_queries != of_pairs {
        let shown = |value: Option<&Value>| value.map_or("missing".to_owned(), Value::to_string);
        let (a, b) = (shown(of_queries), shown(of_pairs));
        found.problems.push(format!("`llama_4_scaling.{key}` is {a}, and `yarn.{key}` {b}: one is known"));
    }
}

/// Settings of a quantisation, whose method these files may spell with an underscore.
fn hyphenated(quantisation: &Value) -> Value {
    let mut quantisation = quantisation.clone();
    if let Some(Value::String(method)) = quantisation.get_mut("quant_method") {
        *method = method.replace('_', "-");
    }
    quantisation
}

/// The key of these files for one of Hugging Face's.
fn own_key(theirs: &str) -> Option<&'static str> {
    KEYS.iter().find(|(_, key, _)| *key == theirs).map(|(own, ..)| *own)
}

/// A problem with the keys of these files in place of Hugging Face's.
fn own_words(problem: &str) -> String {
    let mut words = problem.replace("`quantization_config", "`quantization");
    for (own, theirs, _) in KEYS {
        words = words.replace(&format!("`{theirs}`"), &format!("`{own}`"));
    }
    words
}

//! The families known so far, `llama` and `qwen3`: their keys, defaults and differences.

use super::ImportError;
use super::keys::{Findings, Keys};
use super::rotary;
use crate::spec::types::{Activation, Rotary};
use serde_json::{Map, Value, json};

/// What a config says, in the words of MODEL.toml.
pub(super) struct Draft {
    pub(super) family: &'static str,
    pub(super) hidden: u64,
    pub(super) layers: u64,
    pub(super) vocabulary: u64,
    pub(super) context: u64,
    pub(super) tied: bool,
    pub(super) eps: f64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) head_dim: u64,
    pub(super) rotary: Rotary,
    /// RMS norm over every query and key head, with the layers' epsilon.
    pub(super) qk_norm: bool,
    /// Biases on q, k, v and output projections.
    pub(super) attention_bias: bool,
    pub(super) width: u64,
    pub(super) activation: Activation,
    /// Biases on gate, up and down projections.
    pub(super) ffn_bias: bool,
    pub(super) stop_ids: Vec<u64>,
    /// Keys whose absence means transformers' default.
    pub(super) defaulted: Vec<String>,
    /// Sentences for the reader.
    pub(super) notes: Vec<String>,
}

/// What a family's configuration class has for an absent key.
struct Family {
    name: &'static str,
    architecture: &'static str,
    vocabulary: u64,
    width: u64,
    context: u64,
    /// Used when the key is absent; `None` makes it `num_attention_heads`, as `null` always does.
    kv_heads: Option<u64>,
    /// Used when the key is absent; `None` divides `hidden_size` by the heads.
    head_dim: Option<u64>,
    /// Ids that end an answer when the key is absent.
    stop_ids: &'static [u64],
    qk_norm: bool,
}

const FAMILIES: [Family; 2] = [
    Family {
        name: "llama",
        architecture: "LlamaForCausalLM",
        vocabulary: 32000,
        width: 11008,
        context: 2048,
        kv_heads: None,
        head_dim: None,
        stop_ids: &[2],
        qk_norm: false,
    },
    Family {
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        vocabulary: 151936,
        width: 22016,
        context: 32768,
        kv_heads: Some(32),
        head_dim: Some(128),
        stop_ids: &[],
        qk_norm: true,
    },
];

/// Keys that say nothing about what is computed: provenance, training, generation and tokenizer settings.
const HARMLESS: [&str; 32] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "dtype",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "use_bfloat16",
    "use_cache",
];

/// The activations by transformers' names; several name one function.
const ACTIVATIONS: [(&str, Activation); 10] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("relu", Activation::Relu),
];

/// Reads a config of a known family.
pub(super) fn read(config: &Map<String, Value>) -> Result<Draft, ImportError> {
    let mut found = Findings::default();
    let known = FAMILIES.iter().map(|family| format!("`{}`", family.name)).collect::<Vec<_>>().join(", ");
    let family = match config.get("model_type") {
        Some(Value::String(name)) => match FAMILIES.iter().find(|family| family.name == name) {
            Some(family) => family,
            None => {
                let problem = format!("`model_type` = {name:?}: not a known family; known are {known}");
                return Err(ImportError { problems: vec![problem] });
            }
        },
        other => {
            let shown = other.map_or("missing".to_owned(), Value::to_string);
            let problem = format!("`model_type` is {shown}: it names the family; known are {known}");
            return Err(ImportError { problems: vec![problem] });
        }
    };
    let draft = read_family(family, Keys::new(config, ""), &mut found);
    match draft {
        Some(draft) if found.problems.is_empty() => {
            Ok(Draft { defaulted: found.defaulted, notes: found.notes, ..draft })
        }
        _ => Err(ImportError { problems: found.problems }),
    }
}

fn read_family(family: &Family, mut keys: Keys, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", 4096);
    let layers = keys.count(found, "num_hidden_layers", 32);
    let vocabulary = keys.count(found, "vocab_size", family.vocabulary);
    let width = keys.count(found, "intermediate_size", family.width);
    let context = keys.count(found, "max_position_embeddings", family.context);
    let heads = keys.count(found, "num_attention_heads", 32);
    let kv_heads = kv_heads(family, &mut keys, found, heads);
    let head_dim = head_dim(family, &mut keys, found, hidden, heads);
    let eps = keys.number(found, "rms_norm_eps", 1e-6);
    let tied = keys.flag(found, "tie_word_embeddings", false);
    let attention_bias = keys.flag(found, "attention_bias", false);
    let activation = activation(&mut keys, found);
    let stop_ids = stop_ids(family, &mut keys, found, vocabulary);
    let rotary = rotary::read(&mut keys, found, head_dim, context);
    let ffn_bias = match family.name {
        "llama" => keys.flag(found, "mlp_bias", false),
        _ => {
            keys.only(found, "mlp_bias", &[json!(false), Value::Null], "this family's ffn has no biases");
            Some(false)
        }
    };
    refuse_variants(family, &mut keys, found, layers);
    keys.harmless(&HARMLESS);
    keys.finish(found, &format!("the {} family", family.name));
    Some(Draft {
        family: family.name,
        hidden: hidden?,
        layers: layers?,
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        eps: eps?,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rotary: rotary?,
        qk_norm: family.qk_norm,
        attention_bias: attention_bias?,
        width: width?,
        activation: activation?,
        ffn_bias: ffn_bias?,
        stop_ids: stop_ids?,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

fn kv_heads(family: &Family, keys: &mut Keys, found: &mut Findings, heads: Option<u64>) -> Option<u64> {
    let kv_heads = match (keys.get("num_key_value_heads"), family.kv_heads) {
        (None, Some(default)) => {
            found.defaulted.push("num_key_value_heads".to_owned());
            Some(default)
        }
        _ => keys.count_or_null(found, "num_key_value_heads")?.or(heads),
    };
    if let (Some(heads), Some(kv_heads)) = (heads, kv_heads)
        && heads % kv_heads != 0
    {
        let problem =
            format!("`num_key_value_heads` = {kv_heads} does not divide `num_attention_heads` = {heads}");
        found.problems.push(problem);
        return None;
    }
    kv_heads
}

fn head_dim(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    hidden: Option<u64>,
    heads: Option<u64>,
) -> Option<u64> {
    let head_dim = match family.head_dim {
        Some(default) => keys.count(found, "head_dim", default)?,
        None => match keys.count_or_null(found, "head_dim")? {
            Some(head_dim) => head_dim,
            None => {
                let (hidden, heads) = (hidden?, heads?);
                if hidden % heads != 0 {
                    let problem = format!(
                        "`hidden_size` = {hidden} is no multiple of `num_attention_heads` = {heads}, and there is no `head_dim`"
                    );
                    found.problems.push(problem);
                    return None;
                }
                hidden / heads
            }
        },
    };
    if head_dim % 2 != 0 {
        found.problems.push(format!("`head_dim` is {head_dim}: rotary embeddings need an even one"));
        return None;
    }
    Some(head_dim)
}

fn activation(keys: &mut Keys, found: &mut Findings) -> Option<Activation> {
    let Some(value) = keys.get("hidden_act") else {
        found.defaulted.push("hidden_act".to_owned());
        return Some(Activation::Silu);
    };
    let known = ACTIVATIONS.iter().find(|(name, _)| value.as_str() == Some(name));
    if known.is_none() {
        let names = ACTIVATIONS.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        found.problems.push(format!("`hidden_act` = {value}: not a known activation; known are {names}"));
    }
    known.map(|(_, activation)| *activation)
}

fn stop_ids(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    vocabulary: Option<u64>,
) -> Option<Vec<u64>> {
    let ids = match keys.get("eos_token_id") {
        None => {
            found.defaulted.push("eos_token_id".to_owned());
            Some(family.stop_ids.to_vec())
        }
        Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(Value::as_u64).collect(),
        Some(id) => id.as_u64().map(|id| vec![id]),
    };
    let Some(ids) = ids else {
        found.problems.push("`eos_token_id` is neither a token id, a list of them, nor null".to_owned());
        return None;
    };
    // Such an id can never be sampled, so it stops nothing; real configs of cut-down models have it.
    let (inside, outside): (Vec<u64>, Vec<u64>) =
        ids.into_iter().partition(|id| *id < vocabulary.unwrap_or(0));
    if let (false, Some(vocabulary)) = (outside.is_empty(), vocabulary) {
        let note = format!("eos_token_id {outside:?} is outside the vocabulary of {vocabulary}: left out.");
        found.notes.push(note);
    }
    let mut distinct: Vec<u64> = Vec::new();
    for id in inside {
        if !distinct.contains(&id) {
            distinct.push(id);
        }
    }
    Some(distinct)
}

/// Names every setting that would make another model of it.
fn refuse_variants(family: &Family, keys: &mut Keys, found: &mut Findings, layers: Option<u64>) {
    let (off, null) = (json!(false), Value::Null);
    let why = format!("only `[{:?}]` is known for this family", family.architecture);
    keys.only(found, "architectures", &[json!([family.architecture]), null.clone()], &why);
    keys.only(found, "pretraining_tp", &[json!(1), null.clone()], "only 1 is known");
    for key in ["is_encoder_decoder", "add_cross_attention", "is_decoder", "tie_encoder_decoder"] {
        // A decoder-only model says `is_decoder: false`; the key is about encoder-decoder pairs.
        keys.only(found, key, &[off.clone(), null.clone()], "only `false` is known");
    }
    keys.only(found, "rope_interleaved", &[off.clone(), null.clone()], "only `false` is known");
    keys.only(found, "pruned_heads", &[json!({}), null.clone()], "pruned heads are not known");
    keys.only(found, "cross_attention_hidden_size", std::slice::from_ref(&null), "only null is known");
    keys.only(found, "use_sliding_window", &[off, null.clone()], "sliding windows are not known yet");
    match family.name {
        // Without `use_sliding_window` these two say nothing.
        "qwen3" => keys.harmless(&["sliding_window", "max_window_layers"]),
        _ => keys.only(found, "sliding_window", &[null], "sliding windows are not known yet"),
    }
    let Some(types) = keys.given("layer_types") else { return };
    let full = |types: &Vec<Value>| types.iter().all(|it| it == "full_attention");
    match types.as_array() {
        Some(types) if full(types) && layers.is_none_or(|layers| types.len() as u64 == layers) => {}
        Some(types) if full(types) => {
            let problem =
                format!("`layer_types` names {} layers, `num_hidden_layers` another number", types.len());
            found.problems.push(problem);
        }
        _ => {
            let other = types.as_array().and_then(|types| types.iter().find(|it| *it != "full_attention"));
            let shown = other.unwrap_or(types);
            found.problems.push(format!("`layer_types` holds {shown}: only \"full_attention\" is known"));
        }
    }
}

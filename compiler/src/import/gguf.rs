//! GGUF files, as llama.cpp's converters write them: their metadata as the config that it was converted from.
//!
//! What metadata says is read by the family's own reader of configs, so a family is described once.

mod gemma4;
mod metadata;
pub(super) mod names;
mod nemotron_h;

use self::metadata::Keys;
use self::names::{ARCHITECTURES, Architecture, FREQUENCIES, Form, Mixture, PROJECTIONS, UNTOLD};
use super::draft::{Draft, Projections};
use super::family;
use super::layers::INTERVAL;
use super::seen::Seen;
use super::{ImportError, refusal};
use monomorph_formats::{Format, decode};
use monomorph_weights::Checkpoint;
use serde_json::{Map, Value, json};

/// The number of a function by which experts are scored.
const SIGMOID: usize = 2;

/// Reads a file of a known architecture; `seen` are its tensors.
pub(super) fn read(checkpoint: &Checkpoint, seen: &Seen) -> Result<Draft, ImportError> {
    let metadata = checkpoint.gguf_metadata().ok_or_else(|| refusal("it is no GGUF file".to_owned()))?;
    let known = || ARCHITECTURES.map(|it| format!("`{}`", it.name)).join(", ");
    let of = |key| metadata.str(key).map_err(|error| refusal(error.to_string()));
    let Some(name) = of("general.architecture")? else {
        return Err(refusal(format!("`general.architecture` is missing; known are {}", known())));
    };
    if let Some((_, why)) = UNTOLD.iter().find(|(untold, _)| *untold == name) {
        return Err(refusal(format!("`general.architecture` = {name:?}: {why}")));
    }
    let Some(architecture) = ARCHITECTURES.iter().find(|it| it.name == name) else {
        let problem =
            format!("`general.architecture` = {name:?}: not a known architecture; known are {}", known());
        return Err(refusal(problem));
    };
    let mut keys = Keys::new(metadata, name);
    let mut config = of_all(architecture, &mut keys, checkpoint, seen);
    let mut put = |key: &str, value: Value| config.insert(key.to_owned(), value);
    match architecture.form {
        Form::Usual => usual(architecture, &mut keys, checkpoint, seen, &mut put),
        Form::Gemma4 => gemma4::read(&mut keys, checkpoint, seen, &mut put),
        Form::NemotronH => nemotron_h::read(&mut keys, seen, &mut put),
    }
    let problems = keys.finish();
    if !problems.is_empty() {
        return Err(ImportError { problems });
    }
    let draft = family::read(&config).map_err(|error| ImportError {
        problems: error.problems.iter().map(|problem| metadata::own_words(problem, name)).collect(),
    })?;
    let mut draft = Draft { gguf: Some(architecture), ..draft };
    if architecture.form == Form::NemotronH && draft.context == nemotron_h::ANY_CONTEXT {
        let note = "The context is what converters write of this family, whatever the model was trained for.";
        draft.notes.push(note.to_owned());
    }
    if draft.naming.projections == Projections::Grouped && !seen.has("blk.", PROJECTIONS) {
        draft.naming.projections = Projections::GroupedGates;
    }
    Ok(draft)
}

/// What the metadata of every architecture says of the config that it was converted from.
fn of_all(
    architecture: &Architecture,
    keys: &mut Keys,
    checkpoint: &Checkpoint,
    seen: &Seen,
) -> Map<String, Value> {
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| config.insert(key.to_owned(), value);
    put("model_type", json!(architecture.family));
    for (key, own) in metadata::COUNTS {
        put(key, json!(keys.count(own)));
    }
    put("tie_word_embeddings", json!(!seen.has("output.weight", "")));
    put("eos_token_id", json!(keys.stop_ids()));
    if let Ok(embedding) = checkpoint.tensor("token_embd.weight") {
        let rows = embedding.shape.first().copied().unwrap_or(0);
        keys.only("vocab_size", rows, "as many as the embedding has rows is known");
        put("vocab_size", json!(rows));
    } else {
        keys.refuse("the file has no tensor `token_embd.weight` in a known format".to_owned());
    }
    config
}

/// What that of most architectures says besides.
fn usual(
    architecture: &Architecture,
    keys: &mut Keys,
    checkpoint: &Checkpoint,
    seen: &Seen,
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
) {
    put("num_hidden_layers", json!(keys.count("block_count")));
    // Where all layers have experts, configs need not have a width of others.
    let dense = "feed_forward_length";
    let shared = architecture.experts == Mixture::QwenShared;
    let width = if shared { keys.optional(dense) } else { Some(keys.count(dense)) };
    if let Some(width) = width {
        put("intermediate_size", json!(width));
    }
    let heads = keys.count("attention.head_count");
    let head_dim = keys.optional("attention.key_length").unwrap_or_else(|| {
        let hidden = keys.count("embedding_length");
        hidden / heads.max(1)
    });
    put("num_key_value_heads", json!(keys.optional("attention.head_count_kv").unwrap_or(heads)));
    put("head_dim", json!(head_dim));
    let mut whole = vec!["attention.value_length"];
    if architecture.experts == Mixture::MiniMax {
        put("rotary_dim", json!(keys.count("rope.dimension_count")));
    } else if architecture.delta_net.is_some() {
        put("partial_rotary_factor", json!(part_of_heads(keys, head_dim)));
    } else {
        whole.push("rope.dimension_count");
    }
    for key in whole {
        keys.only(key, head_dim, "as wide as a head's key, of which all is rotated, is known");
    }
    put("rms_norm_eps", json!(keys.number("attention.layer_norm_rms_epsilon", None)));
    let theta = keys.number("rope.freq_base", Some(10_000.0));
    put("rope_theta", json!(theta));
    put("rope_scaling", scaling(keys, checkpoint, seen, theta, head_dim));
    put("hidden_act", json!("silu"));
    put("attention_bias", json!(seen.has("blk.", ".attn_q.bias")));
    if architecture.family == "llama" {
        put("mlp_bias", json!(seen.has("blk.0.ffn_gate.bias", "")));
    }
    if architecture.delta_net.is_some() {
        hybrid(keys, put);
    }
    if architecture.experts == Mixture::QwenVision {
        // Positions of images, and how many layers take them in: what a vision tower is for.
        keys.harmless("rope.dimension_sections");
        keys.harmless("n_deepstack_layers");
    }
    if architecture.experts == Mixture::None {
        return;
    }
    let (experts, width) = (keys.count("expert_count"), keys.count("expert_feed_forward_length"));
    put("num_experts_per_tok", json!(keys.count("expert_used_count")));
    if architecture.experts == Mixture::MiniMax {
        put("num_local_experts", json!(experts));
        put("intermediate_size", json!(width));
        keys.only("expert_gating_func", SIGMOID, "sigmoid, is known");
    } else {
        put("num_experts", json!(experts));
        put("moe_intermediate_size", json!(width));
        // As llama.cpp computes this architecture.
        put("norm_topk_prob", json!(true));
        put("decoder_sparse_step", json!(1));
        put("mlp_only_layers", json!([]));
    }
    if architecture.experts == Mixture::QwenShared {
        put("shared_expert_intermediate_size", json!(keys.count("expert_shared_feed_forward_length")));
    }
}

/// What part of a head is rotated.
fn part_of_heads(keys: &mut Keys, head_dim: usize) -> f64 {
    let dims = keys.count("rope.dimension_count");
    if dims > head_dim || !dims.is_multiple_of(2) {
        let path = keys.path("rope.dimension_count");
        keys.refuse(format!("metadata `{path}` is {dims}: an even number of at most {head_dim} is known"));
    }
    // A product with the width of a head is never just below the number of dimensions.
    (dims as f64 + 0.5) / head_dim as f64
}

/// What a config says of delta-nets, of the layers that are none, and of draft layers.
fn hybrid(keys: &mut Keys, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    // Positions in time, height and width, which are one for text.
    keys.harmless("rope.dimension_sections");
    let (inner, heads) = (keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank"));
    if heads > 0 && !inner.is_multiple_of(heads) {
        let [inner_path, heads_path] = ["ssm.inner_size", "ssm.time_step_rank"].map(|key| keys.path(key));
        keys.refuse(format!("metadata `{inner_path}` is {inner}: no multiple of `{heads_path}`, {heads}"));
    }
    put("linear_num_value_heads", json!(heads));
    put("linear_value_head_dim", json!(inner / heads.max(1)));
    for (key, own) in metadata::OF_DELTA_NETS {
        put(key, json!(keys.count(own)));
    }
    put("full_attention_interval", json!(keys.optional("full_attention_interval").unwrap_or(INTERVAL)));
    let recurrent = keys.flags("attention.recurrent_layers");
    // Draft layers are blocks behind the layers.
    let (blocks, drafts) = (keys.count("block_count"), keys.optional("nextn_predict_layers"));
    let layers = blocks.saturating_sub(drafts.unwrap_or(0));
    if let Some(drafts) = drafts {
        if layers == 0 {
            let path = keys.path("nextn_predict_layers");
            keys.refuse(format!("metadata `{path}` is {drafts}, of {blocks} blocks: layers are to be left"));
        }
        put("num_hidden_layers", json!(layers));
        put("mtp_num_hidden_layers", json!(drafts));
    }
    let Some(recurrent) = recurrent else { return };
    if recurrent.len() != blocks || recurrent[layers.min(recurrent.len())..].contains(&true) {
        let path = keys.path("attention.recurrent_layers");
        keys.refuse(format!(
            "metadata `{path}` says of {} blocks whether they are recurrent: of all {blocks}, and of no draft \
             layer that it is, is known",
            recurrent.len()
        ));
    }
    let kind = |recurrent: &bool| if *recurrent { "linear_attention" } else { "full_attention" };
    let kinds: Vec<&str> = recurrent.iter().take(layers).map(kind).collect();
    put("layer_types", json!(kinds));
}

/// How rotary frequencies are scaled.
fn scaling(keys: &mut Keys, checkpoint: &Checkpoint, seen: &Seen, theta: f64, head_dim: usize) -> Value {
    let kind = keys.word("rope.scaling.type");
    let scaled = match kind.as_deref() {
        None | Some("none") => None,
        Some(kind @ ("linear" | "yarn")) => {
            let mut scaling =
                json!({ "rope_type": kind, "factor": keys.number("rope.scaling.factor", None) });
            if kind == "yarn" {
                let original = keys.count("rope.scaling.original_context_length");
                scaling["original_max_position_embeddings"] = json!(original);
            }
            Some(scaling)
        }
        Some(other) => {
            keys.refuse(format!(
                "`{}` = {other:?}: `none`, `linear` and `yarn` are known",
                keys.path("rope.scaling.type")
            ));
            None
        }
    };
    if !seen.has(FREQUENCIES, "") {
        return scaled.unwrap_or(Value::Null);
    }
    match factors(checkpoint) {
        Ok(factors) if scaled.is_none() => match of_llama_3(&factors, theta, head_dim) {
            Some(scaling) => return scaling,
            None => {
                keys.refuse(format!("{FREQUENCIES:?} holds other factors than those of Llama 3's scaling"))
            }
        },
        Ok(_) => keys.refuse(format!("{FREQUENCIES:?} scales frequencies, and so does `rope.scaling.type`")),
        Err(problem) => keys.refuse(problem),
    }
    Value::Null
}

fn factors(checkpoint: &Checkpoint) -> Result<Vec<f32>, String> {
    let tensor = checkpoint.tensor(FREQUENCIES).map_err(|error| error.to_string())?;
    if tensor.format != Format::F32 {
        return Err(format!("{FREQUENCIES:?} is {}: f32 is known", tensor.format));
    }
    let bytes = tensor.bytes.read().map_err(|error| error.to_string())?;
    let mut factors = vec![0.0; bytes.len() / 4];
    decode(Format::F32, &bytes, &mut factors);
    Ok(factors)
}

/// The scaling of Llama 3 whose factors these are, by which frequencies are divided: 1 for wavelengths below
/// a quarter of the original context, the largest factor for those beyond it, and between them by what part
/// of a turn is left (transformers' `_compute_llama3_parameters`). The file does not say how long the
/// original context was, so each power of two is tried.
fn of_llama_3(factors: &[f32], theta: f64, head_dim: usize) -> Option<Value> {
    let [low, high] = [1.0, 4.0];
    let largest = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let wanted = |original: f64, at: usize| {
        let turns = original * theta.powf(-2.0 * at as f64 / head_dim as f64) / std::f64::consts::TAU;
        if turns > high {
            1.0
        } else if turns < low {
            largest
        } else {
            let smooth = (turns - low) / (high - low);
            1.0 / ((1.0 - smooth) / largest + smooth)
        }
    };
    let is = |original: f64| {
        let near =
            |(at, factor): (usize, &f32)| (f64::from(*factor) / wanted(original, at) - 1.0).abs() < 1e-4;
        factors.iter().enumerate().all(near)
    };
    if 2 * factors.len() != head_dim {
        return None;
    }
    let original = (5..=20).map(|power| 1u64 << power).find(|original| is(*original as f64))?;
    Some(json!({
        "rope_type": "llama3",
        "factor": largest,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }))
}

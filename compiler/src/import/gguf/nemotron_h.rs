//! Metadata of Nemotron-H: which block a layer is follows from the numbers that are 0 of it.

use super::metadata::{Keys, OF_MAMBA, OF_MIXTURES};
use super::{SIGMOID, Seen};
use serde_json::{Value, json};

/// Texts of the tokens that end an answer.
const ENDS: [&str; 2] = ["</s>", "<|im_end|>"];

/// What converters write of models without rotary embeddings.
pub(super) const ANY_CONTEXT: usize = 1 << 20;

pub(super) fn read(keys: &mut Keys, seen: &Seen, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    put("layer_norm_epsilon", json!(keys.number("attention.layer_norm_rms_epsilon", None)));
    // The same epsilon once more, and of rotations that there are none of.
    for key in ["attention.layer_norm_epsilon", "rope.freq_base", "rope.dimension_count"] {
        keys.harmless(key);
    }
    let mut ends = keys.stop_ids();
    ends.extend(keys.ids_of(&ENDS));
    put("eos_token_id", json!(ends));
    let head_dim = keys.count("attention.key_length");
    keys.only("attention.value_length", head_dim, "as wide as a head's key, is known");
    put("head_dim", json!(head_dim));
    let inner = keys.count("ssm.inner_size");
    for (key, own) in OF_MAMBA {
        put(key, json!(keys.count(own)));
    }
    let heads = keys.count("ssm.time_step_rank");
    if heads > 0 && !inner.is_multiple_of(heads) {
        let [inner_path, heads_path] = ["ssm.inner_size", "ssm.time_step_rank"].map(|key| keys.path(key));
        keys.refuse(format!("metadata `{inner_path}` is {inner}: no multiple of `{heads_path}`, {heads}"));
    }
    put("mamba_head_dim", json!(inner / heads.max(1)));
    let mixes = keys.optional("expert_count").is_some_and(|experts| experts > 0);
    layers(keys, mixes, put);
    put("mlp_bias", json!(seen.has("blk.", ".ffn_up.bias")));
    if mixes {
        experts(keys, put);
    }
}

/// The letters of layers: one that attends has heads of keys, one with a width is a mixture or a dense block,
/// and all others are Mamba-2. A draft head is the block behind them, which is both of the first.
fn layers(keys: &mut Keys, mixes: bool, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    let (blocks, drafts) = (keys.count("block_count"), keys.optional("nextn_predict_layers").unwrap_or(0));
    let layers = blocks.saturating_sub(drafts);
    if drafts > 0 {
        if drafts > 1 || layers == 0 {
            let path = keys.path("nextn_predict_layers");
            keys.refuse(format!(
                "metadata `{path}` is {drafts}, of {blocks} blocks: one behind the layers is known"
            ));
        }
        put("num_nextn_predict_layers", json!(drafts));
        put("mtp_hybrid_override_pattern", json!("*E"));
    }
    let [heads, widths] =
        ["attention.head_count_kv", "feed_forward_length"].map(|key| keys.each(key, blocks));
    let mut letters = String::new();
    for (block, (heads, width)) in heads.iter().zip(&widths).take(layers).enumerate() {
        letters.push(match (*heads > 0, *width > 0) {
            (true, false) => '*',
            (false, true) if mixes => 'E',
            (false, true) => '-',
            (false, false) => 'M',
            (true, true) => {
                keys.refuse(format!("block {block} has heads of keys and a width: a layer is one block"));
                return;
            }
        });
    }
    put("num_hidden_layers", json!(layers));
    put("hybrid_override_pattern", json!(letters));
    // Of layers that have some; those of others are 0.
    for (key, own, numbers) in [
        ("num_key_value_heads", "attention.head_count_kv", &heads),
        ("intermediate_size", "feed_forward_length", &widths),
    ] {
        let mut some = numbers.iter().filter(|number| **number > 0);
        let Some(first) = some.next() else { continue };
        if let Some(other) = some.find(|number| *number != first) {
            let path = keys.path(own);
            keys.refuse(format!("metadata `{path}` has {first} and {other}: one number besides 0 is known"));
        }
        put(key, json!(first));
    }
}

fn experts(keys: &mut Keys, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    for (key, own) in OF_MIXTURES {
        put(key, json!(keys.count(own)));
    }
    put("n_shared_experts", json!(keys.optional("expert_shared_count").unwrap_or(1)));
    put("moe_latent_size", json!(keys.optional("moe_latent_size").filter(|width| *width > 0)));
    put("routed_scaling_factor", json!(keys.number("expert_weights_scale", Some(1.0))));
    keys.only_true("expert_weights_norm", "only weights divided by their sum are known");
    keys.only("expert_gating_func", SIGMOID, "sigmoid, is known");
    for key in ["expert_group_count", "expert_group_used_count"] {
        keys.only(key, 1, "as experts are chosen from one group of all, is known");
    }
}

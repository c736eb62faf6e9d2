//! Metadata of Gemma 4: layers with a window have heads, a width and a base of frequencies of their own.

use super::metadata::Keys;
use super::names::FREQUENCIES;
use super::{Seen, factors};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};

/// Texts of the tokens that end an answer.
const ENDS: [&str; 3] = ["<eos>", "<turn|>", "<|tool_response>"];

/// The factor of frequencies that do not turn: `1e30`.
const STILL: f32 = 1e29;

pub(super) fn read(
    keys: &mut Keys,
    checkpoint: &Checkpoint,
    seen: &Seen,
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
) {
    let blocks = keys.count("block_count");
    put("num_hidden_layers", json!(blocks));
    put("rms_norm_eps", json!(keys.number("attention.layer_norm_rms_epsilon", None)));
    put("attention_bias", json!(seen.has("blk.", ".attn_q.bias")));
    put("final_logit_softcapping", json!(keys.optional_number("final_logit_softcapping")));
    let mut ends = keys.stop_ids();
    ends.extend(keys.ids_of(&ENDS));
    put("eos_token_id", json!(ends));
    keys.only("embedding_length_per_layer_input", 0, "without embeddings for each layer, is known");
    let shared = "attention.shared_kv_layers";
    keys.only(shared, 0, "as no layer reads another layer's keys and values, is known");
    put("hidden_size_per_layer_input", json!(0));
    let widths = keys.each("feed_forward_length", blocks);
    if let Some(width) = of_some(keys, "feed_forward_length", &widths, |_| true) {
        put("intermediate_size", json!(width));
    }
    attention(keys, seen, blocks, put);
    let dims = put_widths(keys, put);
    put("rope_parameters", rotary(keys, checkpoint, dims));
    let experts = keys.optional("expert_count").filter(|experts| *experts > 0);
    put("enable_moe_block", json!(experts.is_some()));
    if let Some(experts) = experts {
        put("num_experts", json!(experts));
        put("top_k_experts", json!(keys.count("expert_used_count")));
        put("moe_intermediate_size", json!(keys.count("expert_feed_forward_length")));
    }
}

/// What is one number of some blocks; `None`, and a problem, where it is several.
fn of_some(keys: &mut Keys, key: &str, numbers: &[usize], those: impl Fn(usize) -> bool) -> Option<usize> {
    let mut of_those = (0..).zip(numbers).filter(|(block, _)| those(*block)).map(|(_, number)| *number);
    let first = of_those.next()?;
    if let Some(other) = of_those.find(|number| *number != first) {
        let path = keys.path(key);
        keys.refuse(format!(
            "metadata `{path}` has {first} and {other} of blocks of one kind: one number is known"
        ));
        return None;
    }
    Some(first)
}

/// Which blocks have a window, and their keys and values.
fn attention(
    keys: &mut Keys,
    seen: &Seen,
    blocks: usize,
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
) {
    put("sliding_window", json!(keys.count("attention.sliding_window")));
    let (pattern, heads) = ("attention.sliding_window_pattern", "attention.head_count_kv");
    let path = keys.path(pattern);
    let Some(sliding) = keys.flags(pattern) else {
        keys.refuse(format!("metadata `{path}` is missing: whether each block has a window"));
        return;
    };
    if sliding.len() != blocks {
        let found = sliding.len();
        keys.refuse(format!(
            "metadata `{path}` says of {found} blocks whether they have a window: of all {blocks} is known"
        ));
        return;
    }
    let kind = |sliding: &bool| if *sliding { "sliding_attention" } else { "full_attention" };
    put("layer_types", sliding.iter().map(kind).collect());
    let few = keys.each(heads, blocks);
    let of_sliding = of_some(keys, heads, &few, |block| sliding[block]);
    let of_full = of_some(keys, heads, &few, |block| !sliding[block]);
    // Blocks without values take their keys for them.
    let full: Vec<usize> = (0..blocks).filter(|block| !sliding[*block]).collect();
    let valued = full.iter().filter(|block| seen.has(&format!("blk.{block}.attn_v.weight"), "")).count();
    if ![0, full.len()].contains(&valued) {
        let all = full.len();
        keys.refuse(format!(
            "{valued} of {all} blocks without a window have a tensor `attn_v`: all or none is known"
        ));
    }
    put("attention_k_eq_v", json!(valued == 0));
    if let Some(few) = of_sliding.or(of_full) {
        put("num_key_value_heads", json!(few));
    }
    if valued == 0 {
        put("num_global_key_value_heads", json!(of_full));
    } else if of_full != of_sliding && of_sliding.is_some() {
        let path = keys.path(heads);
        keys.refuse(format!(
            "metadata `{path}` is another number of blocks without a window: where these have values of \
             their own, one number is known"
        ));
    }
}

/// Widths of heads without and with a window.
fn put_widths(keys: &mut Keys, put: &mut impl FnMut(&str, Value) -> Option<Value>) -> usize {
    let parts = [("global_head_dim", ""), ("head_dim", "_swa")];
    let widths = parts.map(|(theirs, of)| {
        let width = keys.count(&format!("attention.key_length{of}"));
        for key in ["attention.value_length", "rope.dimension_count"] {
            keys.only(
                &format!("{key}{of}"),
                width,
                "as wide as a head's key, of which all is rotated, is known",
            );
        }
        put(theirs, json!(width));
        width
    });
    widths[0]
}

/// Rotary settings of both kinds of layers. Heads without a window turn by [`FREQUENCIES`]: those that do not
/// are divided by [`STILL`] or more.
fn rotary(keys: &mut Keys, checkpoint: &Checkpoint, dims: usize) -> Value {
    let mut theta = |key: &str| keys.number(key, Some(10_000.0));
    let [of_full, of_sliding] = ["rope.freq_base", "rope.freq_base_swa"].map(&mut theta);
    let mut full = json!({ "rope_type": "proportional", "rope_theta": of_full });
    match factors(checkpoint) {
        Ok(factors) => {
            let turning = factors.iter().take_while(|factor| **factor == 1.0).count();
            if 2 * factors.len() != dims || factors[turning..].iter().any(|factor| *factor < STILL) {
                keys.refuse(format!(
                    "{FREQUENCIES:?} holds other factors than those of proportional rotary embeddings: of {} \
                     pairs, ones for those that turn, and then 1e30",
                    dims / 2
                ));
            }
            // A product with the width of a head is never just below the number of dimensions.
            full["partial_rotary_factor"] = json!((2.0 * turning as f64 + 0.5) / dims as f64);
        }
        Err(problem) => keys.refuse(problem),
    }
    json!({
        "full_attention": full,
        "sliding_attention": { "rope_type": "default", "rope_theta": of_sliding },
    })
}

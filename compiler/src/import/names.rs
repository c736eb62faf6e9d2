//! What checkpoints of a family call the model's tensors.

use super::family::Draft;
use crate::spec::types::{DRAFT_PREFIX, DeltaShape, Ffn, FileTensor, RowView};
use crate::spec::{LAYER_PREFIX, TensorDecl};

/// What the names of a draft head's layer begin with.
const DRAFT_LAYER: &str = "mtp.layers.0.";

/// Where a tensor of the model stands in a checkpoint, named as floats are; experts are `stacked`, or have a
/// tensor each.
///
/// # Panics
/// For a tensor that no draft has.
pub(super) fn place(draft: &Draft, stacked: bool, decl: &TensorDecl) -> FileTensor {
    let prefix = draft.naming.prefix;
    match decl.name.as_str() {
        "embedding" => whole(format!("{prefix}embed_tokens.weight")),
        "norm" => whole(format!("{prefix}norm.weight")),
        "head" => whole("lm_head.weight".to_owned()),
        "draft.fc" => whole("mtp.fc.weight".to_owned()),
        "draft.embedding_norm" => whole("mtp.pre_fc_norm_embedding.weight".to_owned()),
        "draft.hidden_norm" => whole("mtp.pre_fc_norm_hidden.weight".to_owned()),
        "draft.norm" => whole("mtp.norm.weight".to_owned()),
        name => {
            let (part, place) = match name.strip_prefix(DRAFT_PREFIX) {
                Some(part) => (part, DRAFT_LAYER.to_owned()),
                None => {
                    let part = name.strip_prefix(LAYER_PREFIX).expect("all others are of layers");
                    (part, format!("{prefix}{LAYER_PREFIX}"))
                }
            };
            let FileTensor { name, view } = in_layer(draft, stacked, part);
            FileTensor { name: format!("{place}{name}"), view }
        }
    }
}

fn in_layer(draft: &Draft, stacked: bool, part: &str) -> FileTensor {
    let (stem, kind) = part.strip_suffix(".bias").map_or((part, "weight"), |stem| (stem, "bias"));
    match stem.split('.').collect::<Vec<_>>()[..] {
        ["mixer", "norm"] => whole("input_layernorm.weight".to_owned()),
        ["ffn", "norm"] => whole("post_attention_layernorm.weight".to_owned()),
        ["attention", norm @ ("q_norm" | "k_norm")] => whole(format!("self_attn.{norm}.weight")),
        ["attention", projection @ ("q" | "gate")] if draft.attention.gate => {
            // Of each head first the query, then its gate.
            let (wide, first) = (draft.attention.head_dim, usize::from(projection == "gate"));
            rows(format!("self_attn.q_proj.{kind}"), first * wide, wide, 2 * wide)
        }
        ["attention", projection] => whole(format!("self_attn.{projection}_proj.{kind}")),
        ["delta", part] => {
            let shape = draft.delta.as_ref().expect("a family with delta-nets").shape;
            delta(shape, draft.naming.fused, part)
        }
        ["ffn", "router"] => whole("mlp.gate.weight".to_owned()),
        ["ffn", "experts", _, part] if stacked => {
            let Ffn::Experts(experts) = &draft.ffn else { unreachable!("experts have an ffn of experts") };
            let width = experts.width;
            match part {
                "gate" => rows("mlp.experts.gate_up_proj".to_owned(), 0, width, 2 * width),
                "up" => rows("mlp.experts.gate_up_proj".to_owned(), width, width, 2 * width),
                _ => rows("mlp.experts.down_proj".to_owned(), 0, draft.hidden, draft.hidden),
            }
        }
        ["ffn", "experts", _, part] => whole(format!("mlp.experts.{{expert}}.{part}_proj.weight")),
        ["ffn", "shared", "scale"] => whole("mlp.shared_expert_gate.weight".to_owned()),
        ["ffn", "shared", part] => whole(format!("mlp.shared_expert.{part}_proj.weight")),
        ["ffn", part] => whole(format!("mlp.{part}_proj.{kind}")),
        _ => unreachable!("{part:?} is of no known family"),
    }
}

fn delta(shape: DeltaShape, fused: bool, part: &str) -> FileTensor {
    let name = |part: &str| format!("linear_attn.{part}");
    let (key, value) = (shape.key_width(), shape.value_width());
    // Value heads of a key head.
    let heads = shape.value_heads / shape.key_heads;
    let (key_group, value_group) = (shape.key_dim, heads * shape.value_dim);
    let group = |first, take| rows(name("in_proj_qkvz.weight"), first, take, 2 * (key_group + value_group));
    let gates = |first| rows(name("in_proj_ba.weight"), first, heads, 2 * heads);
    let below = |first, take| rows(name("in_proj_qkv.weight"), first, take, 2 * key + value);
    match (part, fused) {
        ("q", true) => group(0, key_group),
        ("k", true) => group(key_group, key_group),
        ("v", true) => group(2 * key_group, value_group),
        ("z", true) => group(2 * key_group + value_group, value_group),
        ("b", true) => gates(0),
        ("a", true) => gates(heads),
        ("q", false) => below(0, key),
        ("k", false) => below(key, key),
        ("v", false) => below(2 * key, value),
        ("z" | "b" | "a", false) => whole(name(&format!("in_proj_{part}.weight"))),
        ("o", _) => whole(name("out_proj.weight")),
        ("convolution", _) => whole(name("conv1d.weight")),
        ("norm", _) => whole(name("norm.weight")),
        ("a_log", _) => whole(name("A_log")),
        ("dt_bias", _) => whole(name("dt_bias")),
        _ => unreachable!("a delta-net has no {part:?}"),
    }
}

fn whole(name: String) -> FileTensor {
    FileTensor { name, view: None }
}

fn rows(name: String, first: usize, take: usize, of: usize) -> FileTensor {
    FileTensor { name, view: Some(RowView { first, take, of }) }
}

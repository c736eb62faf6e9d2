//! Keys of a Hugging Face config, and tensor names of its checkpoints.

use super::spec::DeltaNet;
use super::state::DeltaShape;
use crate::blocks::Placed;
use crate::import::draft::Projections;
use crate::import::keys::{Findings, Keys};
use crate::import::names::{LayerTensor, rows, whole};
use crate::spec::types::{Activation, FileTensor, Norm, NormWeight};

/// Reads the keys of a delta-net; `eps` is the model's norm epsilon.
pub(crate) fn read(keys: &mut Keys, found: &mut Findings, eps: Option<f64>) -> Option<DeltaNet> {
    let shape = shape(keys, found);
    let norm = Norm { eps: eps? as f32, weight: NormWeight::Plain };
    // The result is gated with silu in every model, whatever `hidden_act` says.
    Some(DeltaNet { shape: shape?, norm, activation: Activation::Silu })
}

fn shape(keys: &mut Keys, found: &mut Findings) -> Option<DeltaShape> {
    let key_heads = keys.count(found, "linear_num_key_heads", 16);
    let value_heads = keys.count(found, "linear_num_value_heads", 32);
    let key_dim = keys.count(found, "linear_key_head_dim", 128);
    let value_dim = keys.count(found, "linear_value_head_dim", 128);
    let taps = keys.count(found, "linear_conv_kernel_dim", 4);
    let (key_heads, value_heads) = (key_heads?, value_heads?);
    if value_heads % key_heads != 0 {
        let (few, many) = (keys.path("linear_num_key_heads"), keys.path("linear_num_value_heads"));
        let problem = format!("`{few}` = {key_heads} does not divide `{many}` = {value_heads}");
        found.problems.push(problem);
        return None;
    }
    Some(DeltaShape { key_heads, value_heads, key_dim: key_dim?, value_dim: value_dim?, taps: taps? })
}

impl Placed for DeltaNet {
    /// Finds a tensor in the checkpoint.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let ["delta", part] = *tensor.stem else { return None };
        let shape = self.shape;
        let name = |part: &str| format!("linear_attn.{part}");
        let (key, value) = (shape.key_width(), shape.value_width());
        // Value heads per key head.
        let heads = shape.value_heads / shape.key_heads;
        let (key_group, value_group) = (shape.key_dim, heads * shape.value_dim);
        let group =
            |first, take| rows(name("in_proj_qkvz.weight"), first, take, 2 * (key_group + value_group));
        let gates = |first| rows(name("in_proj_ba.weight"), first, heads, 2 * heads);
        let below = |first, take| rows(name("in_proj_qkv.weight"), first, take, 2 * key + value);
        Some(match (part, tensor.projections) {
            ("q", Projections::Grouped) => group(0, key_group),
            ("k", Projections::Grouped) => group(key_group, key_group),
            ("v", Projections::Grouped) => group(2 * key_group, value_group),
            ("z", Projections::Grouped) => group(2 * key_group + value_group, value_group),
            ("b", Projections::Grouped | Projections::GroupedGates) => gates(0),
            ("a", Projections::Grouped | Projections::GroupedGates) => gates(heads),
            ("q", _) => below(0, key),
            ("k", _) => below(key, key),
            ("v", _) => below(2 * key, value),
            ("z" | "b" | "a", _) => whole(name(&format!("in_proj_{part}.weight"))),
            ("o", _) => whole(name("out_proj.weight")),
            ("convolution", _) => whole(name("conv1d.weight")),
            ("norm", _) => whole(name("norm.weight")),
            ("a_log", _) => whole(name("A_log")),
            ("dt_bias", _) => whole(name("dt_bias")),
            _ => unreachable!("a delta-net has no {part:?}"),
        })
    }
}

//! Keys of a Hugging Face config, and tensor names of its checkpoints.

use super::spec::{Mamba2, Shape};
use crate::blocks::Placed;
use crate::import::keys::{Findings, Keys};
use crate::import::names::{LayerTensor, rows, whole};
use crate::spec::types::FileTensor;
use serde_json::json;

/// Reads the keys of Nemotron-H; `eps` is the model's norm epsilon.
pub(crate) fn read(keys: &mut Keys, found: &mut Findings, eps: Option<f64>) -> Option<Mamba2> {
    let heads = keys.count(found, "mamba_num_heads", 128);
    let head_dim = keys.count(found, "mamba_head_dim", 64);
    let groups = keys.count(found, "n_groups", 8);
    let state = keys.count(found, "ssm_state_size", 128);
    let taps = keys.count(found, "conv_kernel", 4);
    keys.only(found, "mamba_hidden_act", &[json!("silu")], "only `silu` is known");
    keys.only(found, "use_conv_bias", &[json!(true)], "only convolutions with a bias are known");
    for key in ["use_bias", "mamba_proj_bias"] {
        keys.only(found, key, &[json!(false)], "only projections without biases are known");
    }
    let (heads, groups) = (heads?, groups?);
    if heads % groups != 0 {
        let (few, many) = (keys.path("n_groups"), keys.path("mamba_num_heads"));
        found.problems.push(format!("`{few}` = {groups} does not divide `{many}` = {heads}"));
        return None;
    }
    let shape = Shape { heads, head_dim: head_dim?, groups, state: state?, taps: taps? };
    Some(Mamba2 { shape, eps: eps? as f32 })
}

/// Takes note of keys that change no result, and of all others for models without such layers. Prompt
/// chunking, state precision and initialisation do not change it; transformers' bounds on the time step
/// apply to training.
pub(crate) fn ignore(keys: &mut Keys) {
    keys.harmless(&["chunk_size", "expand", "mamba_ssm_cache_dtype", "use_mamba_kernels"]);
    keys.harmless(&["time_step_floor", "time_step_limit", "time_step_max", "time_step_min"]);
    keys.harmless(&["mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"]);
    keys.harmless(&["mamba_hidden_act", "use_conv_bias", "use_bias", "mamba_proj_bias"]);
}

impl Placed for Mamba2 {
    /// Finds a tensor in the checkpoint.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let ["mamba2", part] = *tensor.stem else { return None };
        let (inner, channels, heads) = (self.shape.inner(), self.shape.channels(), self.shape.heads);
        let projected =
            |first, take| rows("mixer.in_proj.weight".to_owned(), first, take, inner + channels + heads);
        Some(match part {
            "z" => projected(0, inner),
            "xbc" => projected(inner, channels),
            "dt" => projected(inner + channels, heads),
            "o" => whole("mixer.out_proj.weight".to_owned()),
            "convolution" => whole("mixer.conv1d.weight".to_owned()),
            "convolution_bias" => whole("mixer.conv1d.bias".to_owned()),
            "norm" => whole("mixer.norm.weight".to_owned()),
            "a_log" => whole("mixer.A_log".to_owned()),
            "dt_bias" => whole("mixer.dt_bias".to_owned()),
            "d" => whole("mixer.D".to_owned()),
            _ => unreachable!("a Mamba-2 has no {part:?}"),
        })
    }
}

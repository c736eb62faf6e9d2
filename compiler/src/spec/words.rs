//! Prints values of MODEL.toml in the form the reader takes.

use super::types::{Activation, Around, Norm, NormWeight, Rotary, RotaryPairs, RotaryScaling};

/// Prints `{ kind = "rms", ... }`.
pub(crate) fn norm(norm: Norm) -> String {
    let weight = match norm.weight {
        NormWeight::Plain => "plain",
        NormWeight::OnePlus => "one-plus",
    };
    format!("{{ kind = \"rms\", weight = {weight:?}, eps = {:?} }}", norm.eps)
}

/// Prints the keys of `[model]` that say what surrounds layers, a line each.
pub(crate) fn around(around: Around) -> String {
    let Around { embedding_scale, post_norms, layer_scale, logit_cap } = around;
    let mut text = String::new();
    if let Some(scale) = embedding_scale {
        text += &format!("embedding_scale = {scale:?}\n");
    }
    if post_norms {
        text += "post_norms = true # behind mixers and blocks, before they are added\n";
    }
    if layer_scale {
        text += "layer_scale = true # a number of each layer's own\n";
    }
    if let Some(cap) = logit_cap {
        text += &format!("logit_cap = {cap:?} # cap tanh(logit / cap)\n");
    }
    text
}

/// Prints `[table]` and its scaling.
pub(crate) fn rotary(rotary: &Rotary, table: &str) -> String {
    let pairs = match rotary.pairs {
        RotaryPairs::Halves => "halves",
        RotaryPairs::Adjacent => "adjacent",
    };
    let mut text =
        format!("[{table}]\ndims = {}\ntheta = {:?}\npairs = {pairs:?}\n", rotary.dims, rotary.theta);
    if let Some(turning) = rotary.turning {
        text += &format!("turning = {turning} # pairs, the first of them\n");
    }
    let scaling = match rotary.scaling {
        RotaryScaling::None => return text,
        RotaryScaling::Linear { factor } => format!("kind = \"linear\"\nfactor = {factor:?}\n"),
        RotaryScaling::Llama3 { factor, low, high, original } => format!(
            "kind = \"llama3\"\nfactor = {factor:?}\nlow = {low:?}\nhigh = {high:?}\noriginal = {original:?}\n"
        ),
        RotaryScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } => {
            format!(
                "kind = \"yarn\"\nfactor = {factor:?}\noriginal = {original:?}\nbeta_fast = {beta_fast:?}\n\
             beta_slow = {beta_slow:?}\nattention_factor = {attention_factor:?}\ntruncate = {truncate}\n"
            )
        }
    };
    text += &format!("\n[{table}.scaling]\n");
    text + &scaling
}

/// Name of an activation.
pub(crate) fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu-tanh",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
    }
}

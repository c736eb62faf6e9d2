//! Keys of a Hugging Face config, and tensor names of its checkpoints.

use super::spec::LatentAttention;
use crate::blocks::Placed;
use crate::import::keys::{Findings, Keys};
use crate::import::names::{LayerTensor, rows, whole};
use crate::import::rotary::{self, OfLatents};
use crate::spec::types::{FileTensor, Norm, RotaryPairs};
use serde_json::{Value, json};

/// What is added to the mean square of a latent: transformers' default, whatever the config says of norms.
const EPS: f32 = 1e-6;

pub(crate) fn read(
    keys: &mut Keys,
    found: &mut Findings,
    context: Option<usize>,
    norm: Option<Norm>,
) -> Option<LatentAttention> {
    let heads = keys.count(found, "num_attention_heads", 32);
    let (key_dim, rotated) =
        (keys.count(found, "qk_nope_head_dim", 64), keys.count(found, "qk_rope_head_dim", 64));
    let value_dim = keys.count(found, "v_head_dim", 128);
    let latent = keys.count(found, "kv_lora_rank", 256);
    // `null` makes queries directly.
    let query_latent = match keys.get("q_lora_rank") {
        Some(Value::Null) => Some(None),
        _ => keys.count(found, "q_lora_rank", 1024).map(Some),
    };
    let adjacent = keys.flag(found, "rope_interleave", true);
    // Others that heads would share are not known; the width of a head follows from its parts.
    if let (Some(heads), Some(given)) = (heads, keys.given("num_key_value_heads"))
        && *given != json!(heads)
    {
        let (path, other) = (keys.path("num_key_value_heads"), keys.path("num_attention_heads"));
        found.problems.push(format!("`{path}` = {given}: every head has keys of its own, as `{other}` says"));
    }
    keys.harmless(&["head_dim"]);
    keys.only(found, "attention_bias", &[json!(false), Value::Null], "this family's attention has no biases");
    let OfLatents { mut rotary, score_factor, query_scale } =
        rotary::of_latents(keys, found, rotated, context)?;
    rotary.pairs = if adjacent? { RotaryPairs::Adjacent } else { RotaryPairs::Halves };
    let (key_dim, rotated) = (key_dim?, rotated?);
    let scale = score_factor.map(|factor| (factor / ((key_dim + rotated) as f64).sqrt()) as f32);
    Some(LatentAttention {
        heads: heads?,
        key_dim,
        value_dim: value_dim?,
        latent: latent?,
        query_latent: query_latent?,
        norm: Norm { eps: EPS, ..norm? },
        rotary,
        scale,
        query_scale: Some(query_scale),
    })
}

impl Placed for LatentAttention {
    /// Finds a tensor in the checkpoint.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let ["latent", part] = *tensor.stem else { return None };
        let (module, names) = (tensor.modules.attention, &tensor.modules.latent);
        let all = |name: &str| whole(format!("{module}.{name}.weight"));
        let rotated = self.rotary.dims;
        let some = |name: &str, first: usize, take: usize, of: usize| {
            rows(format!("{module}.{name}.weight"), first, take, of)
        };
        let queries = if self.query_latent.is_some() { names.q_b } else { names.q };
        // Each head's query is followed by its part that rotates, and the latent by its key.
        let (key, latent) = (self.key_dim, self.latent);
        Some(match part {
            "q" => some(queries, 0, key, key + rotated),
            "q_rotated" => some(queries, key, rotated, key + rotated),
            "kv_a" => some(names.kv_a, 0, latent, latent + rotated),
            "k_rotated" => some(names.kv_a, latent, rotated, latent + rotated),
            "q_a" => all(names.q_a),
            "q_norm" => all(names.q_norm),
            "kv_norm" => all(names.kv_norm),
            "kv" => all(names.kv),
            "o" => all(names.o),
            _ => return None,
        })
    }
}

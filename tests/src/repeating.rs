//! Weights whose draft head, or whose attention layers, predict the next token mostly right.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::path::Path;

/// Of what layers add to the residual stream, the part that tiny goldens of few layers keep.
pub const KEPT: f32 = 0.8;

/// Changes the weights in `directory`, f32 or bf16, so that the model mostly repeats itself: layers add only
/// `kept` of what they did to the residual stream, so that the likeliest token is the one just fed. The draft
/// head is made to predict the same, as any subset of the layers then does anyway. Most drafts are accepted.
///
/// # Panics
/// If they are not those of a golden with an untied head, or are not writable.
pub fn repeat(directory: &Path, kept: f32) {
    let file = directory.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("weights are readable");
    let tensors = SafeTensors::deserialize(&bytes).expect("they are sound");
    let changed: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let mut values = floats(view.dtype(), view.data());
            if ["o_proj", "out_proj", "down_proj"].iter().any(|it| name.contains(it)) {
                values.iter_mut().for_each(|value| *value *= kept);
            }
            if ["mtp.fc.weight", "mtp.layers.0.eh_proj.weight"].contains(&name.as_str()) {
                let columns = view.shape()[1];
                for (at, value) in values.iter_mut().enumerate() {
                    *value = if at % columns == at / columns { 1.0 } else { 0.1 * *value };
                }
            }
            let mut bytes = stored(view.dtype(), &values);
            if name == "lm_head.weight" {
                let mut names = tensors.names().into_iter();
                let is_one = |name: &str| {
                    ["embed_tokens.weight", "embeddings.weight"].iter().any(|it| name.ends_with(it))
                };
                let embedding = names.find(|name| is_one(name));
                let embedding = embedding.and_then(|name| tensors.tensor(name).ok());
                bytes = embedding.expect("there is an embedding").data().to_vec();
            }
            (name, view.dtype(), view.shape().to_vec(), bytes)
        })
        .collect();
    let views = changed.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    std::fs::write(&file, serialize(views, None).expect("the tensors are sound")).expect("it is writable");
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect(),
        Dtype::BF16 => {
            let bits = bytes.as_chunks().0.iter().map(|it| u32::from(u16::from_le_bytes(*it)) << 16);
            bits.map(f32::from_bits).collect()
        }
        other => panic!("goldens hold f32 or bf16, not {other:?}"),
    }
}

/// Rounded to nearest, ties to even, if the format has fewer bits.
fn stored(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let half = |value: &f32| {
        let bits = value.to_bits();
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    };
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| half(value).to_le_bytes()).collect(),
    }
}

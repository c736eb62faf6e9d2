//! Checkpoints with static scales of keys and values.

use monomorph_compiler::spec::types::{KvScaleNames, Target};
use monomorph_compiler::toolchain;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::path::Path;

/// Writes a checkpoint of one file to `directory`, with a static scale of keys for each head and one of
/// values for all, unlike in every layer. Returns their names.
///
/// # Panics
/// If the target has no plan, or a file cannot be read or written.
pub fn with_static_scales(target: &Target, weights: &Path, directory: &Path) -> KvScaleNames {
    let file = "model.safetensors";
    let bytes = std::fs::read(weights.join(file)).expect("the weights are one file");
    let tensors = SafeTensors::deserialize(&bytes).expect("they are sound");
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let mut scales: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (body, layer) in &plan.schedule {
        let (Some(layer), Some(kept)) = (layer, plan.kv_heads(&plan.bodies[body.0])) else { continue };
        // Powers of two would round as 1 does.
        let keys = (0..kept.heads).map(|head| 0.011 * (1.0 + (head + layer) as f32)).collect::<Vec<_>>();
        for (side, values) in [("k", keys), ("v", vec![0.3 + *layer as f32])] {
            let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            scales.push((format!("static.{layer}.{side}"), vec![values.len()], bytes));
        }
    }
    let of_scales = scales.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a shape of its bytes");
        (name.clone(), view)
    });
    let all: Vec<(String, TensorView)> = tensors.tensors().into_iter().chain(of_scales).collect();
    std::fs::write(directory.join(file), serialize(all, None).expect("they are sound"))
        .expect("it is writable");
    KvScaleNames { keys: "static.{layer}.k".to_owned(), values: "static.{layer}.v".to_owned() }
}

//! What weights and keys and values take of a memory.

use super::diagnostic::Source;
use super::fit::scales_of;
use super::hardware::ReadHardware;
use super::tensors::{TensorDecl, apart, draft_tensors, tensors};
use super::types::*;
use monomorph_formats::Format;

/// Bytes of one K/V block over all layers, and over the draft head's if `draft` is set.
pub fn kv_block_bytes(model: &Model, quant: &Quant, hardware: &HardwareKind, draft: bool) -> u128 {
    let of_draft = model.draft.iter().filter(|_| draft).flat_map(|it| &it.layers);
    let of_draft = of_draft.map(|layer| (&model.mixers[&layer.mixer], quant.kv_formats));
    let layers = model.layer_mixers().zip(quant.kv_of_layers(model)).chain(of_draft);
    let layouts = layers.filter_map(|(mixer, kv)| Some(mixer.kv()?.layout(hardware, quant.kv_block, kv)));
    layouts.map(|it| it.block_bytes() as u128).sum()
}

/// Bytes of all tensors as stored, and of the draft head's if `draft` is set.
pub fn weight_bytes(model: &Model, quant: &Quant, draft: bool) -> u128 {
    let bytes = |tensor: &TensorDecl| {
        let format = quant.stored.of(tensor.class, &tensor.name).unwrap_or(Format::F32);
        let elements = tensor.rows as u128 * tensor.columns.unwrap_or(1) as u128 * tensor.instances() as u128;
        let codes = elements.div_ceil(format.block_elements() as u128) * format.block_bytes() as u128;
        codes + companion_bytes(tensor, quant)
    };
    let of_draft = if draft { draft_tensors(model) } else { Vec::new() };
    apart(tensors(model), quant.tensors()).iter().chain(&of_draft).map(bytes).sum()
}

/// Bytes of the scales beside all instances of a tensor.
fn companion_bytes(tensor: &TensorDecl, quant: &Quant) -> u128 {
    let scales = scales_of(tensor, &quant.stored, &quant.scales).zip(tensor.columns);
    let companions =
        scales.map_or(Vec::new(), |(scales, columns)| scales.of("", tensor.rows, columns).companions);
    let bytes = |companion: &Companion| {
        let elements: u128 = companion.shape.iter().map(|size| *size as u128).product();
        elements * companion.format.block_bytes() as u128 * tensor.instances() as u128
    };
    companions.iter().map(bytes).sum()
}

/// Checks that the weights and at least one block of keys and values fit the memory.
/// So many ranks share the weights, and each has a memory of its own.
pub(super) fn check(source: &Source, hardware: &ReadHardware, model: &Model, quant: &Quant, ranks: usize) {
    let (weights, block) =
        (weight_bytes(model, quant, false), kv_block_bytes(model, quant, &hardware.hardware.kind, false));
    let memory = hardware.hardware.memory_bytes;
    if (weights + block).div_ceil(ranks as u128) > u128::from(memory) {
        let (model, quant_name, hardware_name) = (&model.name, &quant.name, &hardware.hardware.name);
        let (needed, there) = (size(weights + block), size(memory.into()));
        let message = format!(
            "{model}/{quant_name} does not fit the memory of {hardware_name}: it takes {needed}, and there are {there}"
        );
        let help = format!(
            "the weights are {weights} bytes and one K/V block of {} tokens is {block}: at least {} bytes, a \
             smaller quantisation or a smaller model",
            quant.kv_block,
            weights + block
        );
        let label = format!("{memory} bytes");
        let misfit = source.mistake(hardware.memory.clone(), "memory.bytes", message, &label, help);
        source.sink.push(misfit.too_large());
    }
}

/// Bytes in a readable unit.
fn size(bytes: u128) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

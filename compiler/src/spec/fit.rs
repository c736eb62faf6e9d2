//! Whether a quant spec fits its model, and both fit the hardware.

use super::diagnostic::Source;
use super::hardware::ReadHardware;
use super::quant::{CLASSES, Names, ReadQuant, class_names};
use super::reader::{At, list, nearest};
use super::tensors::{TensorDecl, tensors};
use super::types::*;
use monomorph_formats::Format;
use std::collections::BTreeMap;
use std::ops::Range;

/// Checks what there is of a quant spec against its model; the validated quant if all of it is there.
pub(super) fn quant(source: &Source, name: &str, read: ReadQuant, model: &Model) -> Option<Quant> {
    let tensors = tensors(model);
    let names = read.checkpoint.as_ref().and_then(|it| it.names.as_ref());
    if let Some((names, span)) = names {
        check_names(source, names, span, &tensors);
    }
    if let Some(rows) = read.checkpoint.as_ref().and_then(|it| it.rotary_rows.as_ref()) {
        check_rotary_rows(source, rows, model);
    }
    let stored = read.stored.map(|(stored, span)| self::stored(source, &stored, &span, model, &tensors))?;
    let compute = read.compute.map(|(compute, span)| self::compute(source, &compute, &span, model, &stored));
    let checkpoint = read.checkpoint?;
    let names = checkpoint.names?.0.into_iter().map(|(name, file)| (name.value, file.value));
    let checkpoint = CheckpointSpec {
        container: checkpoint.container?,
        names: names.collect(),
        rotary_rows: checkpoint.rotary_rows?.value,
        unused: checkpoint.unused?.into_iter().map(|name| name.value).collect(),
        sources: checkpoint.sources?,
    };
    let (kv_format, kv_block) = read.kv?;
    Some(Quant { name: name.to_owned(), checkpoint, stored, compute: compute?, kv_format, kv_block })
}

fn check_names(source: &Source, names: &Names, span: &Range<usize>, tensors: &[TensorDecl]) {
    let known = || tensors.iter().map(|tensor| tensor.name.as_str());
    for (name, _) in names {
        if !known().any(|it| it == name.value) {
            let key = format!("checkpoint.names.{:?}", name.value);
            let message = format!("the model has no tensor {:?}", name.value);
            let unnamed = known().filter(|it| names.iter().all(|(name, _)| name.value != *it));
            let help = match nearest(&name.value, unnamed) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("its tensors are {}", list(known())),
            };
            source.report(name.span.clone(), &key, message, "no such tensor", help);
        }
    }
    for name in known() {
        if !names.iter().any(|(known, _)| known.value == name) {
            let key = format!("checkpoint.names.{name:?}");
            let message = format!("nothing says what {name:?} is called in the checkpoint");
            let help = format!("add `{name:?} = \"...\"`");
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
}

/// The classes this model has.
fn classes(model: &Model) -> impl Iterator<Item = TensorClass> {
    let tied = model.tied;
    CLASSES.into_iter().filter(move |class| *class != TensorClass::Head || !tied)
}

fn stored(
    source: &Source,
    stored: &[(TensorClass, At<Format>)],
    span: &Range<usize>,
    model: &Model,
    tensors: &[TensorDecl],
) -> BTreeMap<TensorClass, Format> {
    for class in classes(model) {
        if !stored.iter().any(|(known, _)| *known == class) {
            let key = format!("stored.{}", class.name());
            let message = format!("`{key}` is missing");
            let help = format!(
                "the model has the classes {}: add `{} = \"...\"`",
                class_names(classes(model)),
                class.name()
            );
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
    for (class, format) in stored {
        let key = format!("stored.{}", class.name());
        if *class == TensorClass::Head && model.tied {
            let message = format!("`{key}` is given, but the head is the embedding");
            let help = "take it out, or say `tied = false` in MODEL.toml".to_owned();
            source.report(format.span.clone(), &key, message, "no such tensor", help);
            continue;
        }
        let block = format.value.block_elements();
        if *class == TensorClass::Norm && format.value.is_quantised() {
            let message = format!("`{key}` cannot be {}: norms and biases are not quantised", format.value);
            let help = "one of `f32`, `bf16`, `f16`".to_owned();
            source.report(format.span.clone(), &key, message, "quantised", help);
            continue;
        }
        // One report a class: the tensors of a class mostly share the dimension at fault.
        let misfit = tensors.iter().find_map(|tensor| {
            let columns = tensor.columns.filter(|columns| tensor.class == *class && columns % block != 0)?;
            Some((tensor, columns))
        });
        if let Some((tensor, columns)) = misfit {
            let message = format!(
                "`{key}` = {:?} does not fit {:?}: its rows of {columns} do not fill blocks of {block}",
                format.value.name(),
                tensor.name
            );
            let whole = Format::ALL.into_iter().filter(|it| columns % it.block_elements() == 0);
            let help = format!("one of {}", list(whole));
            source.report(format.span.clone(), &key, message, &format!("blocks of {block}"), help);
        }
    }
    stored.iter().map(|(class, format)| (*class, format.value)).collect()
}

fn compute(
    source: &Source,
    given: &[(TensorClass, At<Compute>)],
    span: &Range<usize>,
    model: &Model,
    stored: &BTreeMap<TensorClass, Format>,
) -> BTreeMap<TensorClass, Compute> {
    let mut compute = BTreeMap::new();
    for (class, value) in given {
        let key = format!("compute.{}", class.name());
        if *class == TensorClass::Head && model.tied {
            let message = format!("`{key}` is given, but the head is the embedding");
            let help = "`compute.embedding` says how the head computes: take this out".to_owned();
            source.report(value.span.clone(), &key, message, "no such tensor", help);
            continue;
        }
        if let Some(format) = stored.get(class)
            && value.value == Compute::Int8Block32
            && !format.is_quantised()
        {
            let message = format!("`{key}` is {:?}, but the class is stored as {format}", value.value.name());
            let help = "products with weights that are not quantised compute in `f32`".to_owned();
            source.report(value.span.clone(), &key, message, "for quantised weights only", help);
        }
        compute.insert(*class, value.value);
    }
    for class in classes(model).filter(|class| *class != TensorClass::Norm) {
        // A float class computes in f32; for a quantised one the author decides.
        let quantised = stored.get(&class).is_some_and(|format| format.is_quantised());
        if quantised && !compute.contains_key(&class) {
            let key = format!("compute.{}", class.name());
            let message = format!("`{key}` is missing: the class is quantised");
            let help = format!(
                "add `{} = \"int8-block32\"` to [compute] to round activations to int8, or `\"f32\"` not to",
                class.name()
            );
            source.report(span.clone(), &key, message, "not in this table", help);
        }
        compute.entry(class).or_insert(Compute::F32);
    }
    compute
}

fn check_rotary_rows(source: &Source, rows: &At<RotaryRows>, model: &Model) {
    if rows.value != RotaryRows::Interleaved {
        return;
    }
    for (name, mixer) in &model.mixers {
        let Mixer::Attention(attention) = mixer;
        if attention.head_dim % 2 != 0 {
            let key = "checkpoint.rotary_rows";
            let message =
                format!("rows cannot be interleaved: heads of {name:?} are {} wide", attention.head_dim);
            let help = "an odd head has no halves to interleave: `as-model`".to_owned();
            source.report(rows.span.clone(), key, message, "needs an even head_dim", help);
        }
    }
}

/// Bytes of one block of cached keys and values, all layers together. Rows of values are padded to whole
/// vectors of 16.
pub fn kv_block_bytes(model: &Model, quant: &Quant) -> u128 {
    let per_token: u128 = model
        .pattern
        .iter()
        .cycle()
        .take(model.layers)
        .filter_map(|name| model.mixers.get(name))
        .map(|Mixer::Attention(it)| {
            it.kv_heads as u128 * (it.head_dim as u128 + (it.head_dim as u128).next_multiple_of(16))
        })
        .sum();
    per_token * quant.kv_block as u128 * quant.kv_format.block_bytes() as u128
}

/// Bytes of all tensors as stored.
pub fn weight_bytes(model: &Model, quant: &Quant) -> u128 {
    let bytes = |tensor: &TensorDecl| {
        let format = quant.stored.get(&tensor.class).copied().unwrap_or(Format::F32);
        let elements = tensor.rows as u128 * tensor.columns.unwrap_or(1) as u128 * tensor.instances() as u128;
        elements.div_ceil(format.block_elements() as u128) * format.block_bytes() as u128
    };
    tensors(model).iter().map(bytes).sum()
}

/// Checks that the weights and at least one block of keys and values fit the memory.
pub(super) fn memory(source: &Source, hardware: &ReadHardware, model: &Model, quant: &Quant) {
    let (weights, block) = (weight_bytes(model, quant), kv_block_bytes(model, quant));
    let memory = hardware.hardware.memory_bytes;
    if weights + block > u128::from(memory) {
        let message =
            format!("{}/{} does not fit the memory of {}", model.name, quant.name, hardware.hardware.name);
        let help = format!(
            "the weights are {weights} bytes and one K/V block of {} tokens is {block}: at least {} bytes, a \
             smaller quantisation or a smaller model",
            quant.kv_block,
            weights + block
        );
        let label = format!("{memory} bytes");
        source.report(hardware.memory.clone(), "memory.bytes", message, &label, help);
    }
}

//! Whether a quant spec fits its model, and both fit the hardware.

use super::diagnostic::Source;
use super::hardware::ReadHardware;
use super::quant::{CLASSES, Names, ReadQuant, class_names};
use super::reader::{At, list, nearest};
use super::tensors::{TensorDecl, tensors};
use super::types::*;
use monomorph_formats::{ACTIVATION_BLOCK, Format};
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
    let scales = read.scales.map(|(scales, span)| self::scales(source, &scales, &span, &stored));
    let compute = read.compute.map(|(compute, span)| self::compute(source, &compute, &span, model, &stored));
    let checkpoint = read.checkpoint?;
    let (scales, (names, _)) = (scales?, checkpoint.names?);
    if let Some(unused) = &checkpoint.unused {
        check_companions(source, &names, unused, &scales, &tensors);
    }
    let names = names.into_iter().map(|(name, file)| (name.value, file.value));
    let checkpoint = CheckpointSpec {
        container: checkpoint.container?,
        names: names.collect(),
        rotary_rows: checkpoint.rotary_rows?.value,
        unused: checkpoint.unused?.into_iter().map(|name| name.value).collect(),
        sources: checkpoint.sources?,
    };
    let (kv_format, kv_block) = read.kv?;
    Some(Quant { name: name.to_owned(), checkpoint, stored, scales, compute: compute?, kv_format, kv_block })
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
            let alike =
                |it: &Format| !it.is_quantised() || it.has_companions() == format.value.has_companions();
            let fits = |it: &Format| columns % it.block_elements() == 0 && alike(it);
            let whole = Format::ALL.into_iter().filter(fits);
            let help = format!("one of {}", list(whole));
            source.report(format.span.clone(), &key, message, &format!("blocks of {block}"), help);
        }
    }
    stored.iter().map(|(class, format)| (*class, format.value)).collect()
}

/// Whether the classes stored as codes with companions, and no others, have scales of a form for those codes.
fn scales(
    source: &Source,
    given: &[(TensorClass, At<ClassScales>)],
    span: &Range<usize>,
    stored: &BTreeMap<TensorClass, Format>,
) -> BTreeMap<TensorClass, ClassScales> {
    let forms = |format: Format| list(ScaleForm::ALL.into_iter().filter(move |form| form.codes() == format));
    for (class, scales) in given {
        let (key, form) = (format!("scales.{}", class.name()), scales.value.form);
        match stored.get(class) {
            Some(format) if *format == form.codes() => {}
            Some(format) if format.has_companions() => {
                let message =
                    format!("`{key}` has the form {:?}, and the class is stored as {format}", form.name());
                let help = format!("the forms of {format} are {}", forms(*format));
                source.report(scales.span.clone(), &key, message, "another format's form", help);
            }
            other => {
                let message = match other {
                    Some(format) => {
                        format!("`{key}` is given, and {format} has no scales beside its tensors")
                    }
                    None => format!("`{key}` is given, and `[stored]` does not know the class"),
                };
                let help = "scales belong to classes stored as `fp8-e4m3` or `nvfp4`: take it out".to_owned();
                source.report(scales.span.clone(), &key, message, "nothing to scale", help);
            }
        }
    }
    for (class, format) in stored.iter().filter(|(_, format)| format.has_companions()) {
        if *class != TensorClass::Norm && !given.iter().any(|(known, _)| known == class) {
            let key = format!("scales.{}", class.name());
            let message = format!("`{key}` is missing: {format} codes have scales in tensors of their own");
            let help =
                format!("add `{} = {{ form = \"...\" }}` to [scales]: {}", class.name(), forms(*format));
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
    given.iter().map(|(class, scales)| (*class, scales.value)).collect()
}

/// Whether the companions of weights have names of their own.
fn check_companions(
    source: &Source,
    names: &Names,
    unused: &[At<String>],
    scales: &BTreeMap<TensorClass, ClassScales>,
    tensors: &[TensorDecl],
) {
    let named = names.iter().map(|(_, file)| file).chain(unused);
    let mut taken: BTreeMap<String, Range<usize>> =
        named.map(|name| (name.value.clone(), name.span.clone())).collect();
    for (name, file) in names {
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == name.value) else { continue };
        let (Some(scales), Some(columns)) = (scales.get(&tensor.class), tensor.columns) else { continue };
        for companion in scales.of(&file.value, tensor.rows, columns).companions {
            let key = format!("checkpoint.names.{:?}", name.value);
            if let Some(place) = taken.get(&companion.name) {
                let message =
                    format!("{:?} holds scales of {:?} and is no tensor besides", companion.name, name.value);
                let help = "scales are found by their weight's name: take this name out".to_owned();
                let mistake = source.mistake(place.clone(), &key, message, "named here", help);
                source.sink.push(mistake.also(file.span.clone(), "its weight"));
            } else {
                taken.insert(companion.name, file.span.clone());
            }
        }
    }
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
            && !format.block_elements().is_multiple_of(ACTIVATION_BLOCK)
        {
            let message = format!("`{key}` is {:?}, but the class is stored as {format}", value.value.name());
            let help = "it is for weights in blocks of 32: others compute in `f32` or `bf16`".to_owned();
            source.report(value.span.clone(), &key, message, "for blocks of 32 only", help);
        }
        compute.insert(*class, value.value);
    }
    for class in classes(model).filter(|class| *class != TensorClass::Norm) {
        // A float class computes in f32; for a quantised one the author decides.
        let quantised = stored.get(&class).is_some_and(|format| format.is_quantised());
        if quantised && !compute.contains_key(&class) {
            let key = format!("compute.{}", class.name());
            let message = format!("`{key}` is missing: the class is quantised");
            let rounded = match stored.get(&class) {
                Some(format) if format.has_companions() => ("bf16", "bf16"),
                _ => ("int8-block32", "int8"),
            };
            let help = format!(
                "add `{} = {:?}` to [compute] to round activations to {}, or `\"f32\"` not to",
                class.name(),
                rounded.0,
                rounded.1
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

/// Bytes of one block of cached keys and values, all layers together. A CPU pads rows of values to whole vectors of 16.
pub fn kv_block_bytes(model: &Model, quant: &Quant, hardware: &HardwareKind) -> u128 {
    let value_width = |head_dim: usize| match hardware {
        HardwareKind::Cpu(_) => head_dim.next_multiple_of(16),
        HardwareKind::Cuda(_) => head_dim,
    };
    let per_token: u128 = model
        .pattern
        .iter()
        .cycle()
        .take(model.layers)
        .filter_map(|name| model.mixers.get(name))
        .map(|Mixer::Attention(it)| {
            it.kv_heads as u128 * (it.head_dim as u128 + value_width(it.head_dim) as u128)
        })
        .sum();
    per_token * quant.kv_block as u128 * quant.kv_format.block_bytes() as u128
}

/// Bytes of all tensors as stored.
pub fn weight_bytes(model: &Model, quant: &Quant) -> u128 {
    let bytes = |tensor: &TensorDecl| {
        let format = quant.stored.get(&tensor.class).copied().unwrap_or(Format::F32);
        let elements = tensor.rows as u128 * tensor.columns.unwrap_or(1) as u128 * tensor.instances() as u128;
        let codes = elements.div_ceil(format.block_elements() as u128) * format.block_bytes() as u128;
        codes + companion_bytes(tensor, quant)
    };
    tensors(model).iter().map(bytes).sum()
}

/// Bytes of the scales beside all instances of a tensor.
fn companion_bytes(tensor: &TensorDecl, quant: &Quant) -> u128 {
    let scales = quant.scales.get(&tensor.class).zip(tensor.columns);
    let companions =
        scales.map_or(Vec::new(), |(scales, columns)| scales.of("", tensor.rows, columns).companions);
    let bytes = |companion: &Companion| {
        let elements: u128 = companion.shape.iter().map(|size| *size as u128).product();
        elements * companion.format.block_bytes() as u128 * tensor.instances() as u128
    };
    companions.iter().map(bytes).sum()
}

/// Checks that the weights and at least one block of keys and values fit the memory.
pub(super) fn memory(source: &Source, hardware: &ReadHardware, model: &Model, quant: &Quant) {
    let (weights, block) =
        (weight_bytes(model, quant), kv_block_bytes(model, quant, &hardware.hardware.kind));
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

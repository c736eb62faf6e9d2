//! Writes the storage of a checkpoint as a readable quant spec.

use super::draft::{Draft, DraftHead, FULL, LINEAR};
use super::gguf::names::FREQUENCIES;
use super::seen::Seen;
use super::storage::{Placed, classes};
use crate::spec::types::{ClassScales, Compute, FileTensor, RotaryRows, ScaleForm, TensorClass, ValueHeads};
use monomorph_formats::Format;
use std::collections::BTreeSet;

/// Writes a quant spec. All tensors not in f32 compute in `compute`, except norms and the router, and blocks
/// of GGUF, which have their own.
pub(super) fn write(draft: &Draft, name: &str, all: &[Placed], compute: Compute, seen: &Seen) -> String {
    let classes = classes(all);
    let stored_of_all: Vec<&str> =
        all.iter().map(|it| it.storage.format.name()).collect::<BTreeSet<_>>().into_iter().collect();
    let (mut names, mut stored, mut scales, mut computes) =
        (String::new(), String::new(), String::new(), String::new());
    for placed in all.iter().filter(|it| !it.of_some_layers()) {
        names += &format!("{:?} = {}\n", placed.decl.name, file(&placed.file));
    }
    let of_both = |class: &TensorClass| {
        let of_class = || all.iter().filter(|it| it.decl.class == *class);
        [true, false].iter().all(|blocks| of_class().any(|it| is_of_blocks(it.storage.format) == *blocks))
    };
    let mixed: Vec<TensorClass> = classes.keys().filter(|class| of_both(class)).copied().collect();
    let rounds = |format: Format| format != Format::F32 && compute != Compute::F32;
    for (class, storage) in &classes {
        let remark = if *class == TensorClass::Norm { " # and biases" } else { "" };
        stored += &format!("{} = {:?}{remark}\n", class.name(), storage.format.name());
        if let Some(form) = storage.scales {
            scales += &format!("{} = {}\n", class.name(), scale_form(form));
        }
        let exact = [TensorClass::Norm, TensorClass::Router].contains(class);
        if !exact && (rounds(storage.format) || storage.format.is_quantised()) {
            computes += &format!("{} = {:?}\n", class.name(), compute_of(storage.format, compute).name());
        }
    }
    for placed in all {
        let Placed { decl, storage, .. } = placed;
        let (of_class, apart) = (classes[&decl.class], placed.of_some_layers());
        if apart || storage.format != of_class.format {
            stored += &format!("{:?} = {:?}\n", decl.name, storage.format.name());
        }
        // What is not rounded to int8 in a class of blocks, and what is in another.
        let exact = [TensorClass::Norm, TensorClass::Router].contains(&decl.class);
        if !exact && (apart || *storage != of_class) && mixed.contains(&decl.class) {
            computes += &format!("{:?} = {:?}\n", decl.name, compute_of(storage.format, compute).name());
        }
        if let Some(form) = storage.scales.filter(|_| apart || *storage != of_class) {
            scales += &format!("{:?} = {}\n", decl.name, scale_form(form));
        }
    }
    if !scales.is_empty() {
        scales = format!("\n[scales]\n{scales}");
    }
    if !computes.is_empty() {
        computes = format!("\n# What both operands of a product are rounded to.\n[compute]\n{computes}");
    }
    let any = all.iter().any(|it| rounds(it.storage.format));
    let blocks = all.iter().any(|it| is_of_blocks(it.storage.format));
    let kv = match compute {
        _ if blocks => "f16",
        Compute::F16 if any => "bf16",
        _ => "f32",
    };
    let container = if draft.gguf.is_some() { "gguf" } else { "safetensors" };
    let article = if draft.gguf.is_some() { "file" } else { "checkpoint" };
    let rotary_rows = match draft.gguf.map(|it| it.rotary_rows) {
        Some(RotaryRows::Interleaved) => "interleaved",
        Some(RotaryRows::AsModel) | None => "as-model",
    };
    let converted = converted(draft);
    let kv_scales = kv_scales(all, seen);
    let unused = unused(draft, all, seen, kv_scales.is_some());
    let unused: String = unused.iter().map(|name| format!("    {name:?},\n")).collect();
    let unused = match unused.as_str() {
        "" => String::new(),
        names => format!("# What checkpoints also hold; nothing reads it.\nunused = [\n{names}]\n"),
    };
    let kv_scales = kv_scales.map_or(String::new(), |[keys, values]| {
        format!("scales = {{ keys = {keys:?}, values = {values:?} }} # of fp8\n")
    });
    format!(
        "\
# {name} as a {container} {article} stored in {formats}; products in {compute}, keys and values in {kv}.

[checkpoint]
container = \"{container}\"
rotary_rows = \"{rotary_rows}\"
{converted}{unused}
[checkpoint.names]
{names}
[stored]
{stored}{scales}{computes}
[kv]
format = \"{kv}\"
{kv_scales}block = 16
",
        formats = stored_of_all.join(", "),
        compute = match computes.is_empty() {
            true => "f32",
            false if blocks => Compute::Int8Block32.name(),
            false => compute.name(),
        }
    )
}

/// What a converter changed of states that decay, and of the norms of models with delta-nets.
fn converted(draft: &Draft) -> String {
    let Some(architecture) = draft.gguf else { return String::new() };
    let there = |name: &str| draft.pattern.iter().any(|layer| layer.mixer == name);
    let heads = match architecture.delta_net.filter(|_| there(LINEAR)) {
        None => "",
        Some(ValueHeads::Grouped) => "value_heads = \"grouped\"\n",
        Some(ValueHeads::Tiled) => "value_heads = \"tiled\"\n",
    };
    let norms = if architecture.delta_net.is_some() { "one_plus_norms = \"one-added\"\n" } else { "" };
    let decays = draft.mixers.iter().any(|(name, mixer)| mixer.decays() && there(name));
    let decay = if decays { "decay = \"negative-rate\"\n" } else { "" };
    format!("{heads}{norms}{decay}")
}

/// Whether its scales are in blocks of codes: a format of GGUF.
pub(super) fn is_of_blocks(format: Format) -> bool {
    format.is_quantised() && !format.has_companions()
}

/// What products with a stored format compute in, where floats compute in `floats`.
fn compute_of(format: Format, floats: Compute) -> Compute {
    if is_of_blocks(format) { Compute::Int8Block32 } else { floats }
}

fn file(file: &FileTensor) -> String {
    match file.view {
        None => format!("{:?}", file.name),
        Some(view) => format!(
            "{{ tensor = {:?}, rows = [{}, {}], of = {} }}",
            file.name,
            view.first,
            view.first + view.take,
            view.of
        ),
    }
}

fn scale_form(scales: ClassScales) -> String {
    let form = scales.form.name();
    match scales.form.codes() {
        Format::Nvfp4 => format!("{{ form = {form:?} }}"),
        _ => format!("{{ form = {form:?}, format = {:?} }}", scales.format.name()),
    }
}

/// The tensors of static scales of keys and values that a checkpoint was seen to have, in the forms of tools.
fn kv_scales(all: &[Placed], seen: &Seen) -> Option<[String; 2]> {
    let module = |part: &str| {
        let name = format!("layers.{{layer}}.attention.{part}");
        let placed = all.iter().find(|it| it.decl.base() == name)?;
        placed.file.name.rsplit_once('.').map(|(module, _)| module.to_owned())
    };
    let keys = module("k")?;
    let block = keys.rsplit_once('.')?.0;
    // A model whose values are made of keys has no such module.
    let values = module("v").unwrap_or_else(|| format!("{block}.v_proj"));
    let pair = |keys: &str, values: &str| [format!("{keys}.k_scale"), format!("{values}.v_scale")];
    let inner = format!("{block}.attn");
    // Model Optimizer's, compressed-tensors', those of vLLM's own modules, and an older one for both.
    let both = format!("{block}.kv_scale");
    let forms = [pair(&keys, &values), pair(block, block), pair(&inner, &inner), [both.clone(), both]];
    forms.into_iter().find(|names| names.iter().all(|name| seen.has_in_a_layer(name)))
}

/// Tensors that a checkpoint may contain besides, in the order of the file. Where it was seen to have static
/// scales of keys and values, they are none of them.
fn unused(draft: &Draft, all: &[Placed], seen: &Seen, scaled: bool) -> Vec<String> {
    let mut unused = Vec::new();
    if draft.gguf.is_some() {
        unused.extend(seen.has(FREQUENCIES, "").then(|| FREQUENCIES.to_owned()));
        return unused;
    }
    let (prefix, naming) = (draft.naming.prefix, &draft.naming);
    unused.extend(naming.towers.iter().map(|tower| (*tower).to_owned()));
    match draft.head {
        DraftHead::Present => {}
        // Makers' own files, whose names have no prefix, hold no tables of frequencies.
        DraftHead::Never if prefix.is_empty() => {}
        DraftHead::Never => unused.push(format!("{prefix}layers.{{layer}}.self_attn.rotary_emb.inv_freq")),
        DraftHead::Absent | DraftHead::Unsaid => unused.push("mtp.*".to_owned()),
    }
    if draft.tied {
        unused.push(naming.head.to_owned());
    }
    let mut optimised = false;
    for Placed { file, storage, .. } in all {
        let Some(scales) = storage.scales else { continue };
        let suffix = match scales.form {
            ScaleForm::Block128 => continue,
            ScaleForm::CompressedTensors => "input_global_scale",
            ScaleForm::Tensor | ScaleForm::Modelopt => "input_scale",
        };
        optimised |= suffix == "input_scale";
        let stem = file.name.rsplit_once('.').map_or(file.name.as_str(), |(stem, _)| stem);
        let name = format!("{stem}.{suffix}");
        // Rows of one tensor share the scale of their input.
        if !unused.contains(&name) {
            unused.push(name);
        }
    }
    if optimised && !scaled && draft.pattern.iter().any(|layer| layer.mixer == FULL) {
        for part in ["k", "v"] {
            unused.push(format!("{prefix}layers.{{layer}}.self_attn.{part}_proj.{part}_scale"));
        }
    }
    unused
}

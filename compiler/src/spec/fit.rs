//! Checks that a quant spec fits its model.

use super::converted;
use super::diagnostic::Source;
use super::quant::{Boundary, Names, ReadCanary, ReadKv, ReadQuant, Said, Subject, class_names, named_twice};
use super::reader::{At, list, nearest};
use super::tensors::{TensorDecl, apart, draft_tensors, tensors};
use super::types::*;
use monomorph_formats::cached::{Cached, GROUP, KvFormats, MAX_ROTATED, Rotation};
use monomorph_formats::{ACTIVATION_BLOCK, E4M3_GROUP, Format};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Checks the valid parts of a quant spec against its model; returns the quant spec if all parts are valid.
pub(super) fn quant(source: &Source, name: &str, read: ReadQuant, model: &Model) -> Option<Quant> {
    let mut tensors = tensors(model);
    let names = read.checkpoint.as_ref().and_then(|it| it.names.as_ref());
    // A checkpoint may lack its model's draft head, but not a part of it.
    if names.is_some_and(|(names, _)| names.iter().any(|(name, _)| name.value.starts_with(DRAFT_PREFIX))) {
        tensors.extend(draft_tensors(model));
    }
    if let Some((names, span)) = names {
        check_names(source, "checkpoint.names", names, span, &tensors);
        check_named_once(source, "checkpoint.names", names, &tensors);
    }
    // What is said of some layers is about tensors of their own.
    let named = [
        read.stored.as_ref().map(|(said, _)| subjects(said)),
        read.scales.as_ref().map(|(said, _)| subjects(said)),
        read.compute.as_ref().map(|(said, _)| subjects(said)),
    ];
    let named: BTreeSet<String> = named.into_iter().flatten().flatten().collect();
    let tensors = apart(tensors, named.iter().map(String::as_str));
    if let Some(rows) = read.checkpoint.as_ref().and_then(|it| it.rotary_rows.as_ref()) {
        check_rotary_rows(source, rows, model);
    }
    if let Some(read) = read.checkpoint.as_ref().and_then(|it| it.converted.as_ref()) {
        converted::check(source, read, model);
    }
    let stored = read.stored.map(|(stored, span)| self::stored(source, &stored, &span, model, &tensors))?;
    let scales = read.scales.map(|(scales, span)| self::scales(source, &scales, &span, &stored, &tensors));
    let compute =
        read.compute.map(|(compute, span)| self::compute(source, &compute, &span, model, &stored, &tensors));
    let checkpoint = read.checkpoint?;
    let (scales, (names, _), converted) = (scales?, checkpoint.names?, checkpoint.converted?);
    if let Some(unused) = &checkpoint.unused {
        check_companions(source, &names, unused, (&stored, &scales), &tensors);
    }
    check_views(source, &names, &tensors);
    let names = names.into_iter().map(|(name, file)| (name.value, file.value));
    let checkpoint = CheckpointSpec {
        container: checkpoint.container?,
        names: names.collect(),
        rotary_rows: checkpoint.rotary_rows?.value,
        value_heads: converted::value(converted.value_heads),
        one_plus_norms: converted::value(converted.one_plus_norms),
        decay: converted::value(converted.decay),
        unused: checkpoint.unused?.into_iter().map(|name| name.value).collect(),
        sources: checkpoint.sources?,
        canaries: canaries(source, checkpoint.canaries?, model)?,
    };
    let kv = read.kv?;
    if let Some(KvMisfit { of_values, message, help }) = kv_misfit(kv.formats, kv.scales.is_some(), model) {
        let span = kv.spans[usize::from(of_values)].clone();
        source.report(span, "kv", message, "does not fit the model", help);
    }
    Some(Quant {
        name: name.to_owned(),
        checkpoint,
        stored,
        scales,
        compute: compute?,
        kv_formats: kv.formats,
        kv_boundary: kv_boundary(source, &kv, model),
        kv_scales: kv.scales.map(|[keys, values]| KvScaleNames { keys: keys.value, values: values.value }),
        kv_block: kv.block,
    })
}

/// Names of tensors that something is said of.
fn subjects<T>(said: &Said<T>) -> Vec<String> {
    let name = |(subject, _): &(Subject, At<T>)| match subject {
        Subject::Tensor(name) => Some(name.clone()),
        Subject::Class(_) => None,
    };
    said.iter().filter_map(name).collect()
}

/// Canaries whose ids the model has.
fn canaries(source: &Source, read: Vec<ReadCanary>, model: &Model) -> Option<Vec<Canary>> {
    let mut sound = true;
    let mut ids = |key: &str, ids: Vec<At<u32>>| -> Vec<u32> {
        for id in ids.iter().filter(|id| id.value as usize >= model.vocabulary) {
            let key = format!("checkpoint.canary.{key}");
            let message = format!("no token has the id {}", id.value);
            let help = format!("ids of this model are below {}", model.vocabulary);
            source.report(id.span.clone(), &key, message, "outside the vocabulary", help);
            sound = false;
        }
        ids.into_iter().map(|id| id.value).collect()
    };
    let canary = |it: ReadCanary| Canary {
        prompt: ids("prompt", it.prompt),
        answer: ids("answer", it.answer),
        margin: it.margin,
    };
    let canaries = read.into_iter().map(canary).collect();
    sound.then_some(canaries)
}

/// Checks that `table` names exactly these tensors.
pub(crate) fn check_names(
    source: &Source,
    table: &str,
    names: &Names,
    span: &Range<usize>,
    tensors: &[TensorDecl],
) {
    let known = || tensors.iter().map(|tensor| tensor.name.as_str());
    for (name, _) in names {
        if !known().any(|it| it == name.value) {
            let key = format!("{table}.{:?}", name.value);
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
            let key = format!("{table}.{name:?}");
            let message = format!("nothing says what {name:?} is called in the checkpoint");
            let help = format!("add `{name:?} = \"...\"`");
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
}

/// Checks that no layer has two tensors of one name. Layers that are unlike may name theirs alike.
pub(crate) fn check_named_once(source: &Source, table: &str, names: &Names, tensors: &[TensorDecl]) {
    let layers = |name: &String| -> Vec<usize> {
        let named = tensors.iter().filter(|it| it.name == *name);
        named.filter_map(|it| it.layers.as_ref()).flatten().copied().collect()
    };
    let share = |a: &String, b: &String| {
        let (a, b) = (layers(a), layers(b));
        a.is_empty() || b.is_empty() || a.iter().any(|layer| b.contains(layer))
    };
    for (at, (name, file)) in names.iter().enumerate() {
        if file.value.view.is_some() || !file.value.name.contains("{layer}") {
            continue;
        }
        let first = names[..at]
            .iter()
            .find(|(other, first)| first.value == file.value && share(&name.value, &other.value));
        if let Some((other, first)) = first {
            let key = format!("{table}.{:?}", name.value);
            let help = format!("it is that of `{}` already", other.value);
            let mistake = source.mistake(file.span.clone(), &key, named_twice(&file.value), "again", help);
            source.sink.push(mistake.also(first.span.clone(), "first here"));
        }
    }
}

/// The classes this model has.
fn classes(tensors: &[TensorDecl]) -> impl Iterator<Item = TensorClass> {
    TensorClass::ALL.iter().copied().filter(|class| tensors.iter().any(|tensor| tensor.class == *class))
}

/// The tensors that a subject refers to.
fn meant<'a>(tensors: &'a [TensorDecl], subject: &Subject) -> impl Iterator<Item = &'a TensorDecl> {
    tensors.iter().filter(move |tensor| match subject {
        Subject::Class(class) => tensor.class == *class,
        Subject::Tensor(name) => tensor.name == *name,
    })
}

/// Entries by class and by tensor.
fn per_tensor<T: Copy>(said: &Said<T>) -> PerTensor<T> {
    let mut all = PerTensor { classes: BTreeMap::new(), tensors: BTreeMap::new() };
    for (subject, value) in said {
        match subject {
            Subject::Class(class) => drop(all.classes.insert(*class, value.value)),
            Subject::Tensor(name) => drop(all.tensors.insert(name.clone(), value.value)),
        }
    }
    all
}

/// Reports entries whose subject the model does not have. The result says for each entry whether it does.
fn about_something<T>(
    source: &Source,
    table: &str,
    said: &Said<T>,
    model: &Model,
    tensors: &[TensorDecl],
) -> Vec<bool> {
    let check = |(subject, value): &(Subject, At<T>)| {
        if meant(tensors, subject).next().is_some() {
            return true;
        }
        let key = format!("{table}.{}", subject.key());
        let (message, help) = match subject {
            Subject::Class(TensorClass::Head) if model.tied => {
                let message = format!("`{key}` is given, but the head is the embedding");
                let help = match table {
                    "compute" => "`compute.embedding` says how the head computes: take this out",
                    _ => "take it out, or say `tied = false` in MODEL.toml",
                };
                (message, help.to_owned())
            }
            Subject::Class(_) => {
                let message = format!("`{key}` is given, and the model has no such tensors");
                (message, format!("it has the classes {}", class_names(classes(tensors))))
            }
            Subject::Tensor(name) => {
                let near = nearest(name, tensors.iter().map(|tensor| tensor.name.as_str()));
                let help = match near {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("its tensors are {}", list(tensors.iter().map(|it| &it.name))),
                };
                (format!("the model has no tensor {name:?}"), help)
            }
        };
        source.report(value.span.clone(), &key, message, "no such tensor", help);
        false
    };
    said.iter().map(check).collect()
}

fn stored(
    source: &Source,
    stored: &Said<Format>,
    span: &Range<usize>,
    model: &Model,
    tensors: &[TensorDecl],
) -> PerTensor<Format> {
    for class in classes(tensors) {
        if !stored.iter().any(|(known, _)| *known == Subject::Class(class)) {
            let key = format!("stored.{}", class.name());
            let message = format!("`{key}` is missing");
            let help = format!(
                "the model has the classes {}: add `{} = \"...\"`",
                class_names(classes(tensors)),
                class.name()
            );
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
    let known = about_something(source, "stored", stored, model, tensors);
    for (subject, format) in stored.iter().zip(known).filter_map(|(it, known)| known.then_some(it)) {
        let key = format!("stored.{}", subject.key());
        let block = format.value.block_elements();
        if format.value.is_quantised() && meant(tensors, subject).any(|it| it.class == TensorClass::Norm) {
            let message = format!("`{key}` cannot be {}: norms and biases are not quantised", format.value);
            let help = "one of `f32`, `bf16`, `f16`".to_owned();
            source.report(format.span.clone(), &key, message, "quantised", help);
            continue;
        }
        if format.value.is_quantised()
            && meant(tensors, subject).any(|it| it.class == TensorClass::LatentHeads)
        {
            let message = format!("`{key}` cannot be {}: heads of a latent are not quantised", format.value);
            let help = "one of `f32`, `bf16`, `f16`: it is multiplied by from both sides".to_owned();
            source.report(format.span.clone(), &key, message, "quantised", help);
            continue;
        }
        // One report per class: the tensors of a class mostly share the dimension at fault.
        let misfit = meant(tensors, subject).find_map(|tensor| {
            let columns = tensor.columns.filter(|columns| columns % block != 0)?;
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
    per_tensor(stored)
}

/// Checks that tensors stored as codes with companions, and only those, have scales of a suitable form.
fn scales(
    source: &Source,
    given: &Said<ClassScales>,
    span: &Range<usize>,
    stored: &PerTensor<Format>,
    tensors: &[TensorDecl],
) -> PerTensor<ClassScales> {
    let forms = |format: Format| list(ScaleForm::ALL.into_iter().filter(move |form| form.codes() == format));
    for (subject, scales) in given {
        let (key, form) = (format!("scales.{}", subject.key()), scales.value.form);
        let format = match subject {
            Subject::Class(class) => stored.classes.get(class).copied(),
            Subject::Tensor(_) => meant(tensors, subject).find_map(|it| stored.of(it.class, &it.name)),
        };
        match format {
            Some(format) if format == form.codes() => {}
            Some(format) if format.has_companions() => {
                let message =
                    format!("`{key}` has the form {:?}, and the class is stored as {format}", form.name());
                let help = format!("the forms of {format} are {}", forms(format));
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
    let of_classes = stored.classes.iter().map(|(class, format)| (Subject::Class(*class), *format));
    let of_tensors = stored.tensors.iter().map(|(name, format)| (Subject::Tensor(name.clone()), *format));
    for (subject, format) in of_classes.chain(of_tensors).filter(|(_, format)| format.has_companions()) {
        if subject != Subject::Class(TensorClass::Norm) && !given.iter().any(|(known, _)| *known == subject) {
            let key = format!("scales.{}", subject.key());
            let message = format!("`{key}` is missing: {format} codes have scales in tensors of their own");
            let help =
                format!("add `{} = {{ form = \"...\" }}` to [scales]: {}", subject.key(), forms(format));
            source.report(span.clone(), &key, message, "not in this table", help);
        }
    }
    // A tensor that differs from its class does not inherit the class's scales.
    let mut scales = per_tensor(given);
    scales.classes.retain(|class, scales| stored.classes.get(class) == Some(&scales.form.codes()));
    scales
}

/// Checks that the companions of weights have names of their own.
fn check_companions(
    source: &Source,
    names: &Names,
    unused: &[At<String>],
    quant: (&PerTensor<Format>, &PerTensor<ClassScales>),
    tensors: &[TensorDecl],
) {
    let (stored, scales) = quant;
    let named = names.iter().map(|(_, file)| (file.value.name.clone(), file.span.clone()));
    let unused = unused.iter().map(|name| (name.value.clone(), name.span.clone()));
    let taken: BTreeMap<String, Range<usize>> = named.chain(unused).collect();
    let all = names.iter().flat_map(|(name, file)| {
        let of = tensors.iter().filter(|tensor| tensor.base() == name.value);
        of.map(move |tensor| (name, file, tensor))
    });
    for (name, file, tensor) in all {
        let (Some(scales), Some(columns)) = (scales_of(tensor, stored, scales), tensor.columns) else {
            continue;
        };
        let key = format!("checkpoint.names.{:?}", name.value);
        if file.value.stacks_experts(&name.value) {
            let message = format!("{:?} stacks experts, and their scales stand one by one", file.value.name);
            let help = "codes with scales are read from one tensor an expert: put `{expert}` into its name"
                .to_owned();
            source.report(file.span.clone(), &key, message, "stacked codes", help);
        }
        if let (ScaleForm::Block128, Some(view)) = (scales.form, file.value.view)
            && [view.first, view.take, view.of].iter().any(|rows| rows % 128 != 0)
        {
            let message = format!("rows of {:?} are taken across its blocks of 128", file.value.name);
            let help = "every number of `rows` and `of` must be a multiple of 128".to_owned();
            source.report(file.span.clone(), &key, message, "cuts a block", help);
        }
        for companion in scales.of(&file.value.name, tensor.rows, columns).companions {
            if let Some(place) = taken.get(&companion.name) {
                let message =
                    format!("{:?} holds scales of {:?} and is no tensor besides", companion.name, name.value);
                let help = "scales are found by their weight's name: take this name out".to_owned();
                let mistake = source.mistake(place.clone(), &key, message, "named here", help);
                source.sink.push(mistake.also(file.span.clone(), "its weight"));
            }
        }
    }
}

/// The form of a tensor's scales, if it has any.
pub(super) fn scales_of(
    tensor: &TensorDecl,
    stored: &PerTensor<Format>,
    scales: &PerTensor<ClassScales>,
) -> Option<ClassScales> {
    stored.of(tensor.class, &tensor.name).filter(|format| format.has_companions())?;
    scales.of(tensor.class, &tensor.name)
}

/// What keeps one of the tensors from products in fp8: the message, what stands at the place, and help.
fn fp8_misfit<'a>(
    key: &str,
    mut tensors: impl Iterator<Item = &'a TensorDecl>,
    stored: &PerTensor<Format>,
) -> Option<(String, &'static str, String)> {
    tensors.find_map(|it| {
        let (format, name) = (stored.of(it.class, &it.name)?, &it.name);
        if format != Format::Fp8E4m3 {
            let message = format!("`{key}` is \"fp8\", but `{name}` is stored as {format}");
            let help =
                "it multiplies codes of fp8-e4m3 weights by codes of activations: say `f16`".to_owned();
            return Some((message, "for fp8-e4m3 weights only", help));
        }
        let columns = it.columns.filter(|columns| !columns.is_multiple_of(E4M3_GROUP))?;
        let message = format!("`{key}` is \"fp8\", but `{name}` has {columns} columns");
        let help =
            format!("{E4M3_GROUP} activations share a scale, and rows must be whole groups: say `f16`");
        Some((message, "no whole groups of columns", help))
    })
}

fn compute(
    source: &Source,
    given: &Said<Compute>,
    span: &Range<usize>,
    model: &Model,
    stored: &PerTensor<Format>,
    tensors: &[TensorDecl],
) -> PerTensor<Compute> {
    let known = about_something(source, "compute", given, model, tensors);
    for (subject, value) in given.iter().zip(known).filter_map(|(it, known)| known.then_some(it)) {
        let key = format!("compute.{}", subject.key());
        // Not about tensors that say something else themselves.
        let apart = |it: &&TensorDecl| {
            let of_it = |subject: &Subject| matches!(subject, Subject::Tensor(name) if *name == it.name);
            matches!(subject, Subject::Tensor(_)) || !given.iter().any(|(other, _)| of_it(other))
        };
        let mut asked = meant(tensors, subject).filter(apart);
        let misfit = |it: &TensorDecl| {
            let format = stored.of(it.class, &it.name)?;
            (!format.block_elements().is_multiple_of(ACTIVATION_BLOCK)).then(|| (it.name.clone(), format))
        };
        if let Some((name, format)) = asked.find_map(misfit).filter(|_| value.value == Compute::Int8Block32) {
            let what = match subject {
                Subject::Class(_) if stored.tensors.contains_key(&name) => format!("`{name}`"),
                Subject::Class(_) => "the class".to_owned(),
                Subject::Tensor(_) => "it".to_owned(),
            };
            let message = format!("`{key}` is {:?}, but {what} is stored as {format}", value.value.name());
            let help = "it is for weights in blocks of 32: others compute in `f32` or `f16`".to_owned();
            source.report(value.span.clone(), &key, message, "for blocks of 32 only", help);
        }
        if value.value == Compute::Fp8
            && let Some((message, label, help)) =
                fp8_misfit(&key, meant(tensors, subject).filter(apart), stored)
        {
            source.report(value.span.clone(), &key, message, label, help);
        }
        if value.value != Compute::F32 && meant(tensors, subject).any(|it| it.class == TensorClass::Router) {
            let message = format!("`{key}` is {:?}: routers compute in f32", value.value.name());
            let help = "which experts are chosen must not depend on rounding: take it out".to_owned();
            source.report(value.span.clone(), &key, message, "rounded", help);
        }
    }
    let mut compute = per_tensor(given);
    for class in classes(tensors).filter(|class| *class != TensorClass::Norm) {
        // A float class computes in f32; for a quantised one the author decides.
        let quantised = stored.classes.get(&class).is_some_and(|format| format.is_quantised());
        if quantised && class != TensorClass::Router && !compute.classes.contains_key(&class) {
            let key = format!("compute.{}", class.name());
            let message = format!("`{key}` is missing: the class is quantised");
            let rounded = match stored.classes.get(&class) {
                Some(format) if format.has_companions() => ("f16", "f16"),
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
        compute.classes.entry(class).or_insert(Compute::F32);
    }
    compute
}

/// Checks that the rows taken from tensors of the file add up to the model's tensors.
fn check_views(source: &Source, names: &Names, tensors: &[TensorDecl]) {
    for (name, file) in names {
        let (Some(tensor), Some(view)) =
            (tensors.iter().find(|tensor| tensor.base() == name.value), file.value.view)
        else {
            continue;
        };
        let stacked = file.value.stacks_experts(&name.value);
        if tensor.rows % view.take != 0 || (stacked && tensor.rows != view.take) {
            let key = format!("checkpoint.names.{:?}", name.value);
            let message =
                format!("{} rows do not make up the {} of {:?}", view.take, tensor.rows, name.value);
            let help = if stacked { "an expert is one group" } else { "groups are taken whole" };
            source.report(file.span.clone(), &key, message, "these rows", help.to_owned());
        }
    }
}

fn check_rotary_rows(source: &Source, rows: &At<RotaryRows>, model: &Model) {
    if rows.value != RotaryRows::Interleaved {
        return;
    }
    for (name, mixer) in &model.mixers {
        let Some(kv) = mixer.kv() else { continue };
        if kv.head_dim % 2 != 0 {
            let key = "checkpoint.rotary_rows";
            let message = format!("rows cannot be interleaved: heads of {name:?} are {} wide", kv.head_dim);
            let help = "an odd head has no halves to interleave: `as-model`".to_owned();
            source.report(rows.span.clone(), key, message, "needs an even head_dim", help);
        }
    }
}

/// Layers that keep keys and values from which on `boundary_layers = "auto"` has exact ones: with fewer, the
/// exact would be most of the bytes.
const MANY_LAYERS: usize = 20;

/// How many `auto` has at each end.
const AUTO_BOUNDARY: usize = 2;

/// Layers at each end whose keys and values are exact.
fn kv_boundary(source: &Source, kv: &ReadKv, model: &Model) -> usize {
    let keeping = model.layer_mixers().filter(|mixer| mixer.kv().is_some()).count();
    match kv.boundary.as_ref().map(|said| said.value) {
        None => 0,
        Some(Boundary::Auto) => usize::from(keeping >= MANY_LAYERS) * AUTO_BOUNDARY,
        Some(Boundary::Max) => keeping.div_ceil(2),
        Some(Boundary::Layers(layers)) => {
            if 2 * layers > keeping {
                let both = 2 * layers;
                let message = format!(
                    "{layers} exact layers at each end are {both}, and {keeping} keep keys and values"
                );
                let help = format!("0 to {}, \"auto\", or \"max\" for all of them", keeping / 2);
                let span = kv.boundary.as_ref().map_or(0..0, |said| said.span.clone());
                source.report(span, "kv.boundary_layers", message, "too many", help);
            }
            layers
        }
    }
}

/// Why keys and values of a model cannot be kept in some formats.
pub(super) struct KvMisfit {
    /// Whether it is the format of values that does not fit, and not that of keys, or of both.
    pub(super) of_values: bool,
    pub(super) message: String,
    /// What could be done.
    pub(super) help: String,
}

/// Why keys and values of a model cannot be kept in these formats, and by the checkpoint's static scales if
/// it has some; `None` if they can.
pub(super) fn kv_misfit(formats: KvFormats, scaled: bool, model: &Model) -> Option<KvMisfit> {
    let [keys, values] = [formats.keys, formats.values];
    model.mixers.iter().find_map(|(name, mixer)| {
        let kv = mixer.kv()?;
        if kv.latent.is_some() && formats != KvFormats::both(keys) {
            let message = format!("latents of {name:?} are keys and values at once, and cannot be {formats}");
            return Some(KvMisfit { of_values: true, message, help: "one `format` for both".to_owned() });
        }
        if kv.latent.is_some() && scaled && keys == Cached::Fp8 {
            let message = format!("`kv.scales` are named, and latents of {name:?} are kept without them");
            let help = "their scale is 1, or measured: list the tensors under `unused` instead".to_owned();
            return Some(KvMisfit { of_values: false, message, help });
        }
        let (what, width) = match kv.latent {
            None => ("heads", kv.head_dim),
            Some(latent) => ("latents", latent),
        };
        [(false, keys), (true, values)].into_iter().find_map(|(of_values, format)| {
            let help = if format.is_rotated() && Rotation::new(width).is_err() {
                format!("it rotates {what} of a power of two, from 16 to {MAX_ROTATED}: fp8 takes any")
            } else if format.scales().is_some() && !width.is_multiple_of(GROUP) {
                format!("its groups are {GROUP} elements: fp8 takes any width")
            } else {
                return None;
            };
            let message = format!("{what} of {name:?} are {width} wide, and cannot be kept as {format}");
            Some(KvMisfit { of_values, message, help })
        })
    })
}

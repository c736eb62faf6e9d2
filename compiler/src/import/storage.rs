//! Storage of every tensor of a model, summarised by class for a quant spec.

use super::draft::{Draft, Stacked};
use super::gguf::names::{FREQUENCIES, FUSED};
use super::names::place;
use super::quantization::Storage;
use super::seen::Seen;
use crate::graph::instance;
use crate::spec::TensorDecl;
use crate::spec::types::{DRAFT_PREFIX, FileTensor, ScaleForm, TensorClass};
use monomorph_formats::Format;
use std::collections::{BTreeMap, BTreeSet};

/// One tensor of the model (one per layer, one per expert) and its place in the checkpoint.
pub(super) struct Placed {
    pub(super) decl: TensorDecl,
    pub(super) file: FileTensor,
    pub(super) storage: Storage,
}

impl Placed {
    /// Whether it is about some layers of a tensor, most of which are stored otherwise.
    pub(super) fn of_some_layers(&self) -> bool {
        self.decl.name != self.decl.base()
    }
}

/// Every tensor with its storage: as the files show, else as the config says, else `floats`.
///
/// # Errors
/// When a tensor is missing, has no known format, or is stored in several.
pub(super) fn all(
    draft: &Draft,
    tensors: Vec<TensorDecl>,
    seen: &Seen,
    floats: Format,
) -> Result<Vec<Placed>, Vec<String>> {
    let stacked = |layers: &str| match seen.names() {
        true => seen.has(layers, &format!(".{}.gate_up_proj", draft.naming.modules.experts.stacked)),
        false => draft.naming.stacked == Stacked::Yes && draft.quantization.is_none(),
    };
    // The draft head's experts may be stored differently from those of the layers.
    let (of_layers, of_draft) = (stacked(draft.naming.prefix), stacked("mtp."));
    if of_layers && draft.naming.stacked == Stacked::Transposed {
        let what = "experts stand transposed in `mlp.experts.gate_up_proj` and `down_proj` of this family";
        return Err(vec![format!("{what}, which is not known: only a tensor for each expert's matrix is")]);
    }
    let fused = seen.has("blk.", FUSED);
    let mut problems = Vec::new();
    let mut all = Vec::new();
    for decl in by_name(tensors) {
        let stacked = if decl.name.starts_with(DRAFT_PREFIX) { of_draft } else { of_layers };
        let mut file = place(draft, stacked, &decl);
        if let Some(architecture) = draft.gguf {
            match architecture.file(file, decl.rows, draft.layers, fused) {
                Ok(renamed) => file = renamed,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            }
        }
        match storage(draft, &decl, &file, seen, floats) {
            Ok(storages) => {
                let packed =
                    |it: &Storage| it.scales.is_some_and(|it| it.form == ScaleForm::CompressedTensors);
                if storages.iter().all(|(it, _)| packed(it)) {
                    file.name = file.name.replace(".weight", ".weight_packed");
                } else if storages.iter().any(|(it, _)| packed(it)) {
                    let name = &file.name;
                    problems.push(format!("{name:?} is packed in some layers only, which is not known"));
                    continue;
                }
                for (at, (storage, layers)) in storages.into_iter().enumerate() {
                    // Layers that store it unlike most are named.
                    let decl = if at == 0 { decl.clone() } else { of_layers_alone(&decl, layers) };
                    all.push(Placed { decl, file: file.clone(), storage });
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    if draft.gguf.is_some() {
        problems.extend(surplus(&all, seen));
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

/// Problems about tensors that no part of the model is.
fn surplus(all: &[Placed], seen: &Seen) -> Option<String> {
    let known: BTreeSet<&str> = all.iter().map(|it| it.file.name.as_str()).collect();
    let in_layers = |name: &str| {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        layer.parse::<usize>().ok().map(|_| format!("blk.{{layer}}.{part}"))
    };
    // A draft head is in a block of its own.
    let is_known =
        |name: &str| known.contains(name) || in_layers(name).is_some_and(|it| known.contains(&*it));
    let mut others = seen.all().filter(|name| *name != FREQUENCIES && !is_known(name));
    let first = others.next()?;
    let more = match others.count() {
        0 => String::new(),
        count => format!(", nor are {count} more"),
    };
    Some(format!("the tensor {first:?} is no part of the model{more}"))
}

/// Tensors of one name as one, with the layers of all: what is said of how a tensor is stored is said by
/// name, whatever shapes it has.
fn by_name(tensors: Vec<TensorDecl>) -> Vec<TensorDecl> {
    let mut all: Vec<TensorDecl> = Vec::new();
    for decl in tensors {
        match all.iter_mut().find(|known| known.name == decl.name) {
            Some(known) => {
                let more = decl.layers.into_iter().flatten();
                let layers = known.layers.get_or_insert_default();
                layers.extend(more);
                layers.sort_unstable();
            }
            None => all.push(decl),
        }
    }
    all
}

/// What a tensor is called where only some layers are meant.
fn of_layers_alone(decl: &TensorDecl, layers: Vec<usize>) -> TensorDecl {
    let list = layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let name = decl.name.replacen("{layer}", &format!("{{{list}}}"), 1);
    TensorDecl { name, layers: Some(layers), ..decl.clone() }
}

/// Each storage of a tensor and the layers that have it, most layers first.
fn storage(
    draft: &Draft,
    decl: &TensorDecl,
    file: &FileTensor,
    seen: &Seen,
    floats: Format,
) -> Result<Vec<(Storage, Vec<usize>)>, String> {
    let product = decl.columns.is_some() && !decl.convolution && decl.class != TensorClass::Embedding;
    let one = |name: &str| match &draft.quantization {
        _ if seen.formats() => seen.storage(name),
        Some(quantization) => {
            let module = name.rsplit_once('.').map(|(module, _)| module);
            Ok(quantization.of(module.filter(|_| product)))
        }
        None => Ok(Storage::plain(floats)),
    };
    let layers: Vec<Option<usize>> =
        decl.layers.as_ref().map_or(vec![None], |layers| layers.iter().copied().map(Some).collect());
    let experts = if file.name.contains("{expert}") { decl.experts.unwrap_or(1) } else { 1 };
    let mut found: Vec<(Storage, Vec<usize>)> = Vec::new();
    for layer in layers {
        let mut first: Option<(String, Storage)> = None;
        for expert in 0..experts {
            let name = instance(&file.name, layer).replace("{expert}", &expert.to_string());
            let storage = one(&name)?;
            match &first {
                None => first = Some((name, storage)),
                Some((other, differs)) if *differs != storage => {
                    return Err(format!(
                        "{other:?} is stored as {}, and {name:?} as {}: experts that differ are not known",
                        differs.shown(),
                        storage.shown()
                    ));
                }
                Some(_) => {}
            }
        }
        let (_, storage) = first.expect("a tensor has an instance");
        match found.iter_mut().find(|(known, _)| *known == storage) {
            Some((_, layers)) => layers.extend(layer),
            None => found.push((storage, layer.into_iter().collect())),
        }
    }
    found.sort_by_key(|(_, layers)| std::cmp::Reverse(layers.len()));
    Ok(found)
}

impl Storage {
    fn shown(self) -> String {
        match self.scales {
            Some(scales) => format!("{} ({})", self.format, scales.form.name()),
            None => self.format.to_string(),
        }
    }
}

/// The storage of most tensors of each class.
pub(super) fn classes(all: &[Placed]) -> BTreeMap<TensorClass, Storage> {
    let mut classes = BTreeMap::new();
    for placed in all {
        let class = placed.decl.class;
        let of_class = || all.iter().filter(|it| it.decl.class == class);
        let count = |storage: Storage| of_class().filter(|it| it.storage == storage).count();
        let most = of_class().map(|it| it.storage).reduce(|a, b| if count(b) > count(a) { b } else { a });
        classes.insert(class, most.expect("the class has this tensor"));
    }
    classes
}

/// The format with the most bytes, among codes if there are any.
pub(super) fn most(all: &[Placed]) -> Format {
    let mut bytes: BTreeMap<&str, (u128, Format)> = BTreeMap::new();
    for Placed { decl, storage, .. } in all {
        let elements = decl.rows as u128 * decl.columns.unwrap_or(1) as u128 * decl.instances() as u128;
        let blocks = elements.div_ceil(storage.format.block_elements() as u128);
        bytes.entry(storage.format.name()).or_insert((0, storage.format)).0 +=
            blocks * storage.format.block_bytes() as u128;
    }
    bytes
        .into_values()
        .max_by_key(|(bytes, format)| (format.is_quantised(), *bytes))
        .expect("a model has tensors")
        .1
}

/// Name of a quant spec, after its format.
pub(super) fn called(format: Format) -> &'static str {
    match format {
        Format::Fp8E4m3 => "fp8",
        other => other.name(),
    }
}

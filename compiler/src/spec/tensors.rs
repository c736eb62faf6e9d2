//! The tensors of a model: names, classes and shapes, derived from its dimensions alone.

use super::types::of_some_layers;
use super::types::{DRAFT_PREFIX, Ffn, FileTensor, Mixer, Model, Quant, TensorClass};
use std::collections::BTreeMap;

/// One tensor of a model, or one per layer, or one per expert of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// The model's name for it; `{layer}` stands for the index of each of `layers`.
    pub name: String,
    /// The line of the precision contract that applies to it.
    pub class: TensorClass,
    /// Outputs of a matrix, or the length of a vector.
    pub rows: usize,
    /// Inputs of a matrix, or taps of a convolution; `None` for a vector.
    pub columns: Option<usize>,
    /// Whether it is a convolution's: in files it has a dimension of 1 between its two.
    pub convolution: bool,
    /// Its dimensions in files, outermost first, where they are not its rows and columns; empty elsewhere.
    pub dims: Vec<usize>,
    /// Number of experts that have one of this shape each (`{expert}` in the name stands for the index).
    pub experts: Option<usize>,
    /// The layers that have it, ascending; `None` for a tensor outside the layers.
    pub layers: Option<Vec<usize>>,
}

impl TensorDecl {
    /// Its name with `{layer}` for the layers it has: what its tensors are named by in a checkpoint.
    pub fn base(&self) -> String {
        of_some_layers(&self.name).map_or_else(|| self.name.clone(), |(base, _)| base)
    }

    /// Number of tensors it stands for.
    pub fn instances(&self) -> usize {
        self.layers.as_ref().map_or(1, Vec::len) * self.experts.unwrap_or(1)
    }

    /// Elements of one instance; `None` on overflow.
    pub fn elements(&self) -> Option<usize> {
        self.rows.checked_mul(self.columns.unwrap_or(1))
    }

    /// Shape of the checkpoint's tensor that contains it, outermost dimension first.
    pub fn file_shape(&self, file: &FileTensor) -> Vec<usize> {
        if !self.dims.is_empty() {
            return self.dims.clone();
        }
        let rows = file.file_rows(self.rows, None);
        match (self.columns, self.experts, file.view) {
            (Some(columns), Some(experts), Some(view)) if file.stacks_experts(&self.name) => {
                vec![experts, view.of, columns]
            }
            (Some(columns), ..) if self.convolution => vec![rows, 1, columns],
            (Some(columns), ..) => vec![rows, columns],
            (None, ..) => vec![rows],
        }
    }
}

/// Every tensor of `model` in a checkpoint stored as `quant`: those of [`tensors`], and those of
/// [`draft_tensors`] if it has a draft head.
pub fn stored_tensors(model: &Model, quant: &Quant) -> Vec<TensorDecl> {
    let draft = if quant.has_draft() { draft_tensors(model) } else { Vec::new() };
    apart(tensors(model).into_iter().chain(draft).collect(), quant.tensors())
}

/// Tensors of which those of some layers stand apart, where a name is about these. A name that is about other
/// layers than the tensor has, or than are left, is none of a tensor.
pub(super) fn apart<'a>(
    mut tensors: Vec<TensorDecl>,
    names: impl Iterator<Item = &'a str>,
) -> Vec<TensorDecl> {
    for name in names {
        let Some((base, some)) = of_some_layers(name) else { continue };
        let has = |decl: &TensorDecl| {
            let of = |layer| decl.layers.as_ref().is_some_and(|layers| layers.contains(layer));
            decl.name == base && some.iter().all(of) && some.is_sorted_by(|a, b| a < b)
        };
        let Some(at) = tensors.iter().position(has) else { continue };
        let part = TensorDecl { name: name.to_owned(), layers: Some(some.clone()), ..tensors[at].clone() };
        if let Some(layers) = &mut tensors[at].layers {
            layers.retain(|layer| !some.contains(layer));
        }
        tensors.insert(at + 1, part);
    }
    tensors.retain(|decl| decl.layers.as_ref().is_none_or(|layers| !layers.is_empty()));
    tensors
}

/// The tensors of the draft head, in order of use; empty if `model` has none. Embedding and head are the
/// model's own.
pub fn draft_tensors(model: &Model) -> Vec<TensorDecl> {
    let Some(draft) = &model.draft else { return Vec::new() };
    let mut list = List { decls: Vec::new() };
    let one = [0];
    for norm in ["embedding_norm", "hidden_norm"] {
        list.vector(&format!("{LAYER_PREFIX}{norm}"), model.hidden, None);
    }
    list.matrix(&format!("{LAYER_PREFIX}fc"), TensorClass::Draft, model.hidden, 2 * model.hidden, None);
    for layer in &draft.layers {
        if let Some(mixer) = model.mixers.get(&layer.mixer) {
            list.mixer(mixer, model.hidden, &one);
        }
        let ffn = model.ffn_of(layer);
        if ffn.follows() {
            list.vector("layers.{layer}.ffn.norm", model.hidden, Some(&one));
        }
        list.ffn(ffn, model.hidden, &one);
    }
    list.vector(&format!("{LAYER_PREFIX}norm"), model.hidden, None);
    let of_draft = |decl: TensorDecl| TensorDecl {
        name: decl.name.replacen(LAYER_PREFIX, DRAFT_PREFIX, 1),
        class: match decl.class {
            class @ (TensorClass::Norm | TensorClass::Router) => class,
            _ => TensorClass::Draft,
        },
        layers: None,
        ..decl
    };
    list.decls.into_iter().map(of_draft).collect()
}

/// Prefix of the names of layer tensors.
pub const LAYER_PREFIX: &str = "layers.{layer}.";

/// Whether a model has experts.
pub fn has_experts(model: &Model) -> bool {
    tensors(model).iter().any(|tensor| tensor.experts.is_some())
}

/// Every tensor of `model` except its draft head's: embedding, the layers' in order of use, final norm,
/// untied head.
///
/// Mixers of one kind share names. If two of them disagree on a shape, there are two entries of one name,
/// over different layers.
pub fn tensors(model: &Model) -> Vec<TensorDecl> {
    let mut list = List { decls: Vec::new() };
    list.matrix("embedding", TensorClass::Embedding, model.vocabulary, model.hidden, None);
    for (mixer, layers) in layers_of_mixers(model) {
        list.mixer(mixer, model.hidden, &layers);
        if model.around.post_norms && mixer.mixes() {
            list.vector("layers.{layer}.mixer.post_norm", model.hidden, Some(&layers));
        }
    }
    let ffns = layers_of_ffns(model);
    let followed = ffns.iter().filter(|(ffn, _)| ffn.follows());
    let mut followed: Vec<usize> = followed.flat_map(|(_, layers)| layers.iter().copied()).collect();
    followed.sort_unstable();
    if !followed.is_empty() {
        list.vector("layers.{layer}.ffn.norm", model.hidden, Some(&followed));
    }
    for (ffn, layers) in ffns {
        list.ffn(ffn, model.hidden, &layers);
    }
    if model.around.post_norms && !followed.is_empty() {
        list.vector("layers.{layer}.ffn.post_norm", model.hidden, Some(&followed));
    }
    if model.around.layer_scale {
        let all: Vec<usize> = (0..model.layers).collect();
        list.vector("layers.{layer}.scale", 1, Some(&all));
    }
    list.vector("norm", model.hidden, None);
    if !model.tied {
        list.matrix("head", TensorClass::Head, model.vocabulary, model.hidden, None);
    }
    list.decls
}

/// Each mixer of the pattern, with its layers.
fn layers_of_mixers(model: &Model) -> Vec<(&Mixer, Vec<usize>)> {
    let mut layers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for layer in 0..model.layers {
        layers.entry(&model.layer(layer).mixer).or_default().push(layer);
    }
    let known = |(name, layers)| model.mixers.get(name).map(|mixer| (mixer, layers));
    layers.into_iter().filter_map(known).collect()
}

/// Each block that follows a mixer, with its layers.
fn layers_of_ffns(model: &Model) -> Vec<(&Ffn, Vec<usize>)> {
    let mut layers: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for layer in 0..model.layers {
        layers.entry(model.layer(layer).ffn.as_deref()).or_default().push(layer);
    }
    let known = |(name, layers): (Option<&str>, Vec<usize>)| {
        let ffn = name.map_or(Some(&model.ffn), |name| model.other_ffns.get(name));
        ffn.map(|ffn| (ffn, layers))
    };
    layers.into_iter().filter_map(known).collect()
}

struct List {
    decls: Vec<TensorDecl>,
}

impl List {
    /// A mixer and the norm before it.
    fn mixer(&mut self, mixer: &Mixer, hidden: usize, layers: &[usize]) {
        let mut layer = LayerTensors { list: self, layers, hidden };
        if mixer.mixes() {
            layer.vector("mixer.norm", hidden);
        }
        mixer.tensors(&mut layer);
    }

    fn ffn(&mut self, ffn: &Ffn, hidden: usize, layers: &[usize]) {
        ffn.tensors(&mut LayerTensors { list: self, layers, hidden });
    }

    fn matrix(
        &mut self,
        name: &str,
        class: TensorClass,
        rows: usize,
        columns: usize,
        layers: Option<&[usize]>,
    ) {
        self.push(TensorDecl {
            name: name.to_owned(),
            class,
            rows,
            columns: Some(columns),
            convolution: false,
            dims: Vec::new(),
            experts: None,
            layers: layers.map(<[usize]>::to_vec),
        });
    }

    fn vector(&mut self, name: &str, rows: usize, layers: Option<&[usize]>) {
        self.push(TensorDecl {
            name: name.to_owned(),
            class: TensorClass::Norm,
            rows,
            columns: None,
            convolution: false,
            dims: Vec::new(),
            experts: None,
            layers: layers.map(<[usize]>::to_vec),
        });
    }

    /// Adds a tensor, or adds its layers to an equal tensor of another mixer.
    fn push(&mut self, decl: TensorDecl) {
        let same = |known: &&mut TensorDecl| {
            known.name == decl.name && (known.rows, known.columns) == (decl.rows, decl.columns)
        };
        if let Some(known) = self.decls.iter_mut().find(same) {
            if let (Some(known), Some(layers)) = (&mut known.layers, &decl.layers) {
                known.extend(layers);
                known.sort_unstable();
            }
            return;
        }
        self.decls.push(decl);
    }
}

/// Collects the tensors of a block in some layers, by their names after [`LAYER_PREFIX`].
pub(crate) struct LayerTensors<'a> {
    list: &'a mut List,
    layers: &'a [usize],
    /// Width of the residual stream.
    pub(crate) hidden: usize,
}

impl LayerTensors<'_> {
    pub(crate) fn matrix(&mut self, name: &str, class: TensorClass, rows: usize, columns: usize) {
        self.list.matrix(&format!("{LAYER_PREFIX}{name}"), class, rows, columns, Some(self.layers));
    }

    pub(crate) fn vector(&mut self, name: &str, rows: usize) {
        self.list.vector(&format!("{LAYER_PREFIX}{name}"), rows, Some(self.layers));
    }

    /// A depthwise convolution over the tokens.
    pub(crate) fn convolution(&mut self, name: &str, channels: usize, taps: usize) {
        self.list.push(TensorDecl {
            name: format!("{LAYER_PREFIX}{name}"),
            class: TensorClass::Norm,
            rows: channels,
            columns: Some(taps),
            convolution: true,
            dims: Vec::new(),
            experts: None,
            layers: Some(self.layers.to_vec()),
        });
    }

    /// Up and down.
    pub(crate) fn ungated(&mut self, prefix: &str, class: TensorClass, width: usize, bias: bool) {
        let hidden = self.hidden;
        self.matrices(prefix, class, &[("up", width, hidden), ("down", hidden, width)], bias);
    }

    /// A matrix of each expert.
    pub(crate) fn experts(&mut self, part: &str, rows: usize, columns: usize, experts: usize) {
        self.list.push(TensorDecl {
            name: format!("{LAYER_PREFIX}ffn.experts.{{expert}}.{part}"),
            class: TensorClass::Experts,
            rows,
            columns: Some(columns),
            convolution: false,
            dims: Vec::new(),
            experts: Some(experts),
            layers: Some(self.layers.to_vec()),
        });
    }

    /// Gate, up and down.
    pub(crate) fn gated(&mut self, prefix: &str, class: TensorClass, width: usize, bias: bool) {
        let hidden = self.hidden;
        let parts = [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)];
        self.matrices(prefix, class, &parts, bias);
    }

    fn matrices(&mut self, prefix: &str, class: TensorClass, parts: &[(&str, usize, usize)], bias: bool) {
        for &(part, rows, columns) in parts {
            let name = format!("{prefix}.{part}");
            self.matrix(&name, class, rows, columns);
            if bias {
                self.vector(&format!("{name}.bias"), rows);
            }
        }
    }
}

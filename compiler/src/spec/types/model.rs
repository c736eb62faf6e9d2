//! MODEL.toml, validated.

use crate::blocks::{Ffn, Mixer};
use std::collections::BTreeMap;

/// A model, as MODEL.toml describes it.
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
    /// Whether the head is tied to the embedding.
    pub tied: bool,
    /// Form of layer norms and final norm.
    pub norm: Norm,
    /// What surrounds the blocks of its layers.
    pub around: Around,
    /// Kinds of layers, repeated over all of them.
    pub pattern: Vec<LayerKind>,
    /// The mixers by name.
    pub mixers: BTreeMap<String, Mixer>,
    /// The block after every mixer, unless the pattern names another.
    pub ffn: Ffn,
    /// Other blocks after a mixer, by name.
    pub other_ffns: BTreeMap<String, Ffn>,
    /// Its draft head, if it has one. A checkpoint may lack it:
    /// [`Quant::has_draft`](super::Quant::has_draft).
    pub draft: Option<Draft>,
    /// Format of its conversations.
    pub protocol: Protocol,
    /// Recommended sampling; the first is the default.
    pub sampling: Vec<SamplingPreset>,
}

/// What some families compute around the blocks of their layers; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Around {
    /// Multiplies embeddings.
    pub embedding_scale: Option<f32>,
    /// Whether what a mixer gives, and what the block after it gives, is normed before it is added to the
    /// residual stream.
    pub post_norms: bool,
    /// Whether a number of each layer's own multiplies the residual stream behind it.
    pub layer_scale: bool,
    /// Bounds logits to `cap tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
}

/// A mixer and the block after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerKind {
    /// A key of [`Model::mixers`].
    pub mixer: String,
    /// A key of [`Model::other_ffns`]; `None` for [`Model::ffn`].
    pub ffn: Option<String>,
}

impl LayerKind {
    /// Its name as an identifier.
    pub fn name(&self) -> String {
        match &self.ffn {
            None => self.mixer.clone(),
            Some(ffn) => format!("{}_{ffn}", self.mixer),
        }
    }
}

/// Prints an entry of a pattern: the mixer, and after a slash the block that follows it.
impl std::fmt::Display for LayerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.mixer)?;
        self.ffn.iter().try_for_each(|ffn| write!(f, "/{ffn}"))
    }
}

impl Model {
    /// The kind of a layer.
    pub fn layer(&self, layer: usize) -> &LayerKind {
        &self.pattern[layer % self.pattern.len()]
    }

    /// The mixer of every layer.
    pub fn layer_mixers(&self) -> impl Iterator<Item = &Mixer> {
        (0..self.layers).map(|layer| &self.mixers[&self.layer(layer).mixer])
    }

    /// The block after the mixer in layers of a kind.
    pub fn ffn_of(&self, kind: &LayerKind) -> &Ffn {
        kind.ffn.as_ref().map_or(&self.ffn, |name| &self.other_ffns[name])
    }
}

/// A draft head that predicts one token further than the model, from the model's hidden states (multi-token
/// prediction: Gloeckle et al., 2024; DeepSeek-V3, 2024). With `h_t` the hidden state of token `t` after the
/// final norm:
///
/// ```text
/// x_t = fc [norm_e(embedding of token t+1) | norm_h(h_t)];   logits of token t+2 = head(norm(layers(x_t)))
/// ```
///
/// Its layers have keys and values of their own, of all pairs up to `t`; pair `t` is at position `t`. Norms
/// have the model's form; embedding and head are the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its layers, made of the model's blocks. One of them attends, the others have no mixer, and at most one
    /// has a block behind it: tensors of a draft head are named by their block and without a layer.
    pub layers: Vec<LayerKind>,
}

impl Draft {
    /// The names of its layers, as one identifier.
    pub fn name(&self) -> String {
        self.layers.iter().map(LayerKind::name).collect::<Vec<_>>().join("_")
    }
}

/// RMS norm: `x / sqrt(mean(x^2) + eps) * w` in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Added to the mean square.
    pub eps: f32,
    /// How the weight is applied.
    pub weight: NormWeight,
}

/// How a norm's weight is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// Multiplies by `w`.
    Plain,
    /// Multiplies by `1 + w`.
    OnePlus,
}

/// Rotary position embedding (Su et al., RoFormer).
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Leading dimensions of a head that are rotated; even, at most the head's width.
    pub dims: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Which two dimensions form a pair.
    pub pairs: RotaryPairs,
    /// Pairs that turn, the first ones; the others keep their values. `None` if all do.
    pub turning: Option<usize>,
    /// Scaling of the frequencies for long contexts.
    pub scaling: RotaryScaling,
}

/// Which two dimensions of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `(i, i + dims/2)`.
    Halves,
    /// `(2i, 2i + 1)`.
    Adjacent,
}

/// Scaling of rotary frequencies; names and formulas as in transformers' `modeling_rope_utils`.
#[derive(Clone, Debug, PartialEq)]
pub enum RotaryScaling {
    /// Frequencies are not scaled.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor of all frequencies.
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

/// A scalar activation function.
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
    /// `max(x, 0)^2`.
    Relu2,
}

/// The text protocol of a model.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// Replaces the checkpoint's own chat template.
    pub chat_template: Option<String>,
    /// Format of tool calls: one of [`TOOL_FORMATS`].
    pub tools: Option<&'static str>,
    /// Format of reasoning: one of [`REASONING_FORMATS`].
    pub reasoning: Option<&'static str>,
}

/// Names of the formats of tool calls that the server can parse.
pub const TOOL_FORMATS: [&str; 6] = ["hermes", "qwen-xml", "mistral", "minimax", "gemma", "bare-json"];

/// Names of the formats of reasoning that the server can parse.
pub const REASONING_FORMATS: [&str; 3] = ["think", "mistral", "gemma"];

/// A named set of recommended sampling parameters.
#[derive(Clone, Debug)]
pub struct SamplingPreset {
    /// Name, such as `default`.
    pub name: String,
    /// Temperature, at least 0.
    pub temperature: f32,
    /// Nucleus threshold, in (0, 1].
    pub top_p: f32,
    /// Most candidates; 0 keeps all.
    pub top_k: u32,
    /// Threshold relative to the likeliest token, in [0, 1].
    pub min_p: f32,
    /// Penalty of repeated tokens, above 0; 1 is off.
    pub repetition_penalty: f32,
}

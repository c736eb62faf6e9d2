//! The ops and their exact semantics, stated once. The reference interpreter executes them.

use super::WeightId;
use crate::blocks::BlockOp;
use crate::spec::types::{Activation, NormWeight, Rotary, RotaryPairs, RotaryScaling};

/// The operation of a node, row by row unless stated otherwise; all arithmetic is f32.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `() -> table[token]`.
    Embedding {
        /// `[vocabulary, hidden]`.
        table: WeightId,
    },
    /// `x -> x / sqrt(mean(x^2) + eps) * w`, over each of `groups` equal parts of the row
    /// (Zhang & Sennrich, 2019).
    ///
    /// Of a row that `ranks` have a part of each, the mean is that of all parts: every rank computes its sum
    /// of squares, and adds those of all ranks in f32, in their order, so that all have the same bits. Parts
    /// that several ranks have, each of them as often, leave the mean as it is.
    RmsNorm {
        /// One vector shared by all groups; of a row with parts, a part of it.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Whether `w` or `1 + w` multiplies.
        form: NormWeight,
        /// Parts of a row: 1 for the whole row, the number of heads for a norm per head.
        groups: usize,
        /// Ranks that have a part of the row each; 1 where a rank has all of what is normed together.
        ranks: usize,
    },
    /// `x -> x / sqrt(mean(x^2) + eps)`, over each of `groups` equal parts of the row: a norm without a
    /// weight.
    Normalise {
        /// Added to the mean square.
        eps: f32,
        /// As of [`Op::RmsNorm`].
        groups: usize,
    },
    /// `x -> factor * x`.
    Scale {
        /// Multiplies every element.
        factor: f32,
    },
    /// `x -> w * x`.
    ScaleBy {
        /// One number.
        weight: WeightId,
    },
    /// `x -> cap * tanh(x / cap)`.
    Cap {
        /// The bound that is never reached.
        cap: f32,
    },
    /// `x -> W round(x) + b`, where `round` is the weight's compute format.
    Linear {
        /// `[outputs, inputs]`.
        weight: WeightId,
        /// Added to every row: `[outputs]`.
        bias: Option<WeightId>,
    },
    /// Rotates pairs of each head by `position * frequency` (Su et al., 2021). The position is the row's
    /// index in the sequence, unless the step gives others.
    Rotary {
        /// Heads in the row.
        heads: usize,
        /// Width of one head.
        head_dim: usize,
        /// Rotary frequencies.
        frequencies: RotaryFrequencies,
    },
    /// `(x, gate) -> x * sigmoid(gate)`, where the gate is as wide as x, or 1 wide.
    SigmoidGate,
    /// `(gate, up) -> activation(gate) * up` (Shazeer, 2020).
    Gate {
        /// Applied to the first operand.
        activation: Activation,
    },
    /// `x -> activation(x)`.
    Activate {
        /// Applied to every element.
        activation: Activation,
    },
    /// `(a, b) -> [a | b]`, side by side.
    Concat,
    /// `(a, b) -> a + b`.
    Add,
    /// Keeps the rows that need logits.
    Select,
    /// An op of one block, documented there.
    Block(BlockOp),
}

impl Op {
    /// Name in rules and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RmsNorm { .. } => "rms-norm",
            Op::Normalise { .. } => "normalise",
            Op::Scale { .. } => "scale",
            Op::ScaleBy { .. } => "scale-by",
            Op::Cap { .. } => "cap",
            Op::Linear { .. } => "linear",
            Op::Rotary { .. } => "rotary",
            Op::SigmoidGate => "sigmoid-gate",
            Op::Gate { .. } => "gate",
            Op::Activate { .. } => "activate",
            Op::Concat => "concat",
            Op::Add => "add",
            Op::Select => "select",
            Op::Block(op) => op.name(),
        }
    }

    /// What of it the CUDA backend has no kernels for yet, if anything.
    pub(crate) fn unbuilt(&self) -> Option<&'static str> {
        match self {
            Op::Block(op) => op.unbuilt(),
            _ => None,
        }
    }

    /// The names that rules may use.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Op::NAMES.into_iter().chain(BlockOp::NAMES.iter().copied())
    }

    /// Names of the ops that belong to no block.
    const NAMES: [&str; 14] = [
        "embedding",
        "rms-norm",
        "normalise",
        "scale",
        "scale-by",
        "cap",
        "linear",
        "rotary",
        "sigmoid-gate",
        "gate",
        "activate",
        "concat",
        "add",
        "select",
    ];

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embedding { table } => vec![*table],
            Op::RmsNorm { weight, .. } | Op::ScaleBy { weight } => vec![*weight],
            Op::Linear { weight, bias } => std::iter::once(*weight).chain(*bias).collect(),
            Op::Rotary { .. } | Op::SigmoidGate | Op::Gate { .. } | Op::Activate { .. } => vec![],
            Op::Normalise { .. } | Op::Scale { .. } | Op::Cap { .. } => vec![],
            Op::Concat | Op::Add | Op::Select => vec![],
            Op::Block(op) => op.weights(),
        }
    }
}

/// Frequencies of a rotary embedding: pair `i` is rotated by `position * inverse[i]` radians (an f32
/// product), and cosine and sine are multiplied by `factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    /// One per pair; twice as many leading dimensions of each head are rotated.
    pub inverse: Vec<f32>,
    /// 1 for all scalings but YaRN.
    pub factor: f32,
    /// Which two dimensions form a pair.
    pub pairs: RotaryPairs,
    /// The axis of a position that each pair turns by; empty where a position is one number.
    pub axes: Vec<PositionAxis>,
}

/// An axis of the positions of a model that takes images (multimodal rotary embedding: Wang et al., Qwen2-VL,
/// 2024). Tokens of text are at one number in all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionAxis {
    /// That of frames.
    Time,
    /// That of rows.
    Height,
    /// That of columns.
    Width,
}

impl RotaryFrequencies {
    /// Frequencies as transformers' `modeling_rope_utils` computes them, f32 rounding included.
    pub fn new(rotary: &Rotary) -> RotaryFrequencies {
        let base: Vec<f32> = (0..rotary.dims / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / rotary.dims as f32;
                1.0 / rotary.theta.powf(f64::from(exponent)) as f32
            })
            .collect();
        let (mut inverse, factor) = match rotary.scaling {
            RotaryScaling::None => (base, 1.0),
            RotaryScaling::Linear { factor } => (base.iter().map(|f| f / factor as f32).collect(), 1.0),
            RotaryScaling::Llama3 { factor, low, high, original } => {
                (base.iter().map(|f| llama3(*f, factor, low, high, original)).collect(), 1.0)
            }
            RotaryScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } => {
                let ramp = YarnRamp::new(rotary, original, beta_fast, beta_slow, truncate);
                let stretch = |(i, f): (usize, &f32)| {
                    let keep = 1.0 - ramp.at(i);
                    (f / factor as f32) * (1.0 - keep) + f * keep
                };
                (base.iter().enumerate().map(stretch).collect(), attention_factor as f32)
            }
        };
        // What does not turn has cosine 1 and sine 0 at every position.
        inverse.iter_mut().skip(rotary.turning.unwrap_or(usize::MAX)).for_each(|it| *it = 0.0);
        RotaryFrequencies { inverse, factor, pairs: rotary.pairs, axes: Vec::new() }
    }

    /// The same over three axes, which are interleaved: of `[time, height, width]` pairs, pairs 1, 4, 7, …
    /// turn by height, pairs 2, 5, 8, … by width as long as these have any, and all others by time.
    pub fn with_axes(self, [_, height, width]: [usize; 3]) -> RotaryFrequencies {
        let axis = |pair: usize| match pair % 3 {
            1 if pair < 3 * height => PositionAxis::Height,
            2 if pair < 3 * width => PositionAxis::Width,
            _ => PositionAxis::Time,
        };
        let axes = (0..self.inverse.len()).map(axis).collect();
        RotaryFrequencies { axes, ..self }
    }
}

/// Llama 3: long wavelengths divided by `factor`, short ones kept, a linear blend between.
fn llama3(frequency: f32, factor: f64, low: f64, high: f64, original: f64) -> f32 {
    let wavelength = (2.0 * std::f64::consts::PI / f64::from(frequency)) as f32;
    let (low_wavelength, high_wavelength) = ((original / low) as f32, (original / high) as f32);
    if wavelength > low_wavelength {
        frequency / factor as f32
    } else if wavelength < high_wavelength {
        frequency
    } else {
        let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * (frequency / factor as f32) + smooth * frequency
    }
}

/// YaRN's ramp from keeping frequencies (0) to dividing them (1), by pair index.
struct YarnRamp {
    low: f64,
    high: f64,
}

impl YarnRamp {
    fn new(rotary: &Rotary, original: f64, beta_fast: f64, beta_slow: f64, truncate: bool) -> YarnRamp {
        let dims = rotary.dims as f64;
        // The pair that completes `rotations` rotations over the original context.
        let pair = |rotations: f64| {
            dims * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * rotary.theta.ln())
        };
        let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
        if low == high {
            high += 0.001;
        }
        YarnRamp { low, high }
    }

    fn at(&self, pair: usize) -> f32 {
        ((pair as f32 - self.low as f32) / (self.high - self.low) as f32).clamp(0.0, 1.0)
    }
}

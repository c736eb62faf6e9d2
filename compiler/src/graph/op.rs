//! The ops: exact semantics, stated once. The reference interpreter is their executable form.

use super::WeightId;
use crate::spec::types::{Activation, DeltaShape, NormWeight, Rotary, RotaryPairs, RotaryScaling};

/// What a node computes, row by row unless said otherwise; all arithmetic is f32.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `() -> table[token]`.
    Embedding {
        /// `[vocabulary, hidden]`.
        table: WeightId,
    },
    /// `x -> x / sqrt(mean(x^2) + eps) * w`, over each of `groups` equal parts of the row
    /// (Zhang & Sennrich, 2019).
    RmsNorm {
        /// One vector shared by all groups.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Whether `w` or `1 + w` multiplies.
        form: NormWeight,
        /// 1 for the whole row, the number of heads for a norm per head.
        groups: usize,
    },
    /// `x -> W round(x) + b`, where `round` is the weight's compute format.
    Linear {
        /// `[outputs, inputs]`.
        weight: WeightId,
        /// `[outputs]`.
        bias: Option<WeightId>,
    },
    /// Turns pairs of each head by `position * frequency` (Su et al., 2021).
    Rotary {
        /// Heads in the row.
        heads: usize,
        /// Width of one.
        head_dim: usize,
        /// Angles.
        frequencies: RotaryFrequencies,
    },
    /// `(q, k, v) -> softmax(scale q K^T) V` over the sequence's cache, to which `k` and `v` of every row of
    /// the step are added first; a query sees positions up to its own. Query head `h` reads K/V head
    /// `h * kv_heads / heads` (Ainslie et al., 2023).
    Attention {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Width of one.
        head_dim: usize,
        /// Multiplies the scores.
        scale: f32,
    },
    /// `(q, k, v, b, a) -> o`: a causal convolution of q, k and v with SiLU, then for every value head a
    /// gated delta rule over a state `S` `[key_dim, value_dim]` that begins with zeros (Yang et al., 2024).
    /// With `q` and `k` of unit length (`eps` 1e-6 below the root), `q` over `sqrt(key_dim)`, `beta =
    /// sigmoid(b)` and `g = -exp(a_log) ln(1 + exp(a + dt_bias))`:
    ///
    /// ```text
    /// S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q
    /// ```
    DeltaNet {
        /// `[channels, taps]` over q, k and v side by side; the last tap is the current token's.
        convolution: WeightId,
        /// `[value_heads]`.
        a_log: WeightId,
        /// `[value_heads]`.
        dt_bias: WeightId,
        /// Heads and widths.
        shape: DeltaShape,
    },
    /// `(x, gate) -> x * sigmoid(gate)`, where the gate is as wide as x or 1 wide.
    SigmoidGate,
    /// `logits -> [weights | experts]`: the largest of the softmax over all logits, in descending order and
    /// of equals the first, and the indices of their logits.
    Route {
        /// Logits.
        experts: usize,
        /// How many are chosen.
        active: usize,
        /// Whether the chosen weights are divided by their sum.
        renormalise: bool,
    },
    /// `(x, routing) -> activation(gate_e x) * up_e x`, a row for each expert `e` that was chosen.
    ExpertGate {
        /// `[width, inputs]` an expert.
        gate: WeightId,
        /// `[width, inputs]` an expert.
        up: WeightId,
        /// Applied to the gate.
        activation: Activation,
        /// Experts of a row.
        active: usize,
    },
    /// `(inner, routing) -> sum of weight_e * down_e inner_e` over the rows of the experts chosen, in their
    /// order.
    ExpertDown {
        /// `[outputs, width]` an expert.
        down: WeightId,
        /// Experts of a row.
        active: usize,
    },
    /// `(gate, up) -> activation(gate) * up` (Shazeer, 2020).
    Gate {
        /// Applied to the first operand.
        activation: Activation,
    },
    /// `(a, b) -> [a | b]`, side by side.
    Concat,
    /// `(a, b) -> a + b`.
    Add,
    /// Keeps the rows whose logits are wanted.
    Select,
}

impl Op {
    /// The name rules and reports use.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RmsNorm { .. } => "rms-norm",
            Op::Linear { .. } => "linear",
            Op::Rotary { .. } => "rotary",
            Op::Attention { .. } => "attention",
            Op::DeltaNet { .. } => "delta-net",
            Op::SigmoidGate => "sigmoid-gate",
            Op::Route { .. } => "route",
            Op::ExpertGate { .. } => "expert-gate",
            Op::ExpertDown { .. } => "expert-down",
            Op::Gate { .. } => "gate",
            Op::Concat => "concat",
            Op::Add => "add",
            Op::Select => "select",
        }
    }

    /// The names rules may use.
    pub const NAMES: [&str; 14] = [
        "embedding",
        "rms-norm",
        "linear",
        "rotary",
        "attention",
        "delta-net",
        "sigmoid-gate",
        "route",
        "expert-gate",
        "expert-down",
        "gate",
        "concat",
        "add",
        "select",
    ];

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embedding { table } => vec![*table],
            Op::RmsNorm { weight, .. } => vec![*weight],
            Op::Linear { weight, bias } => std::iter::once(*weight).chain(*bias).collect(),
            Op::DeltaNet { convolution, a_log, dt_bias, .. } => vec![*convolution, *a_log, *dt_bias],
            Op::ExpertGate { gate, up, .. } => vec![*gate, *up],
            Op::ExpertDown { down, .. } => vec![*down],
            Op::Rotary { .. }
            | Op::Attention { .. }
            | Op::SigmoidGate
            | Op::Route { .. }
            | Op::Gate { .. }
            | Op::Concat
            | Op::Add
            | Op::Select => vec![],
        }
    }
}

/// The angles of a rotary embedding: pair `i` turns by `position * inverse[i]` radians (an f32 product),
/// and cosine and sine are multiplied by `factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    /// One a pair; twice as many leading dimensions of each head turn.
    pub inverse: Vec<f32>,
    /// 1 except with YaRN.
    pub factor: f32,
    /// Which two dimensions are a pair.
    pub pairs: RotaryPairs,
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
        let (inverse, factor) = match rotary.scaling {
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
        RotaryFrequencies { inverse, factor, pairs: rotary.pairs }
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

/// Where YaRN goes from keeping frequencies (0) to dividing them (1), by pair index.
struct YarnRamp {
    low: f64,
    high: f64,
}

impl YarnRamp {
    fn new(rotary: &Rotary, original: f64, beta_fast: f64, beta_slow: f64, truncate: bool) -> YarnRamp {
        let dims = rotary.dims as f64;
        // The pair that makes `rotations` turns over the original context.
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

//! The ops, written as plainly as possible.

use crate::graph::{RotaryFrequencies, Weight};
use crate::spec::types::{Activation, Compute, NormWeight, RotaryPairs};
use monomorph_formats::{ACTIVATION_BLOCK, dot, quantise_block, through_e4m3, through_halves};

/// Rows of a table, as they are kept for products with it.
pub(super) fn embedding(table: &Weight, values: &[f32], tokens: &[u32]) -> Vec<f32> {
    let row = |token: &u32| &values[*token as usize * table.columns..][..table.columns];
    match rounds_weights(table) {
        true => tokens.iter().map(row).flat_map(through_halves).collect(),
        false => tokens.iter().flat_map(row).copied().collect(),
    }
}

/// Whether a matrix is rounded to f16. With scales beside the codes, f16 holds the codes exactly and the
/// scales multiply sums.
fn rounds_weights(weight: &Weight) -> bool {
    weight.compute == Compute::F16 && weight.scales.is_none()
}

pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, form: NormWeight, width: usize) -> Vec<f32> {
    let norm = |part: &[f32]| normed(part, squares(part) / width as f64, weight, eps, form);
    x.chunks_exact(width).flat_map(norm).collect()
}

/// The same over rows of which each rank has `width` columns, for one of the ranks.
pub(super) fn rms_norm_of_ranks(
    parts: &[&[f32]],
    rank: usize,
    weight: &[f32],
    eps: f32,
    form: NormWeight,
    width: usize,
) -> Vec<f32> {
    let row = |at: usize| {
        let row = at * width..(at + 1) * width;
        let sums = parts.iter().map(|part| squares(&part[row.clone()]) as f32);
        let sum = sums.reduce(|sum, part| sum + part).expect("a part of every rank");
        normed(&parts[rank][row.clone()], f64::from(sum) / (width * parts.len()) as f64, weight, eps, form)
    };
    (0..parts[rank].len() / width).flat_map(row).collect()
}

fn squares(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}

/// What is normed together, or a part of it, by the mean of its squares.
fn normed(x: &[f32], mean: f64, weight: &[f32], eps: f32, form: NormWeight) -> Vec<f32> {
    let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
    let scaled = x.iter().zip(weight).map(|(v, w)| {
        let w = match form {
            NormWeight::Plain => *w,
            NormWeight::OnePlus => 1.0 + w,
        };
        (f64::from(*v) * inverse * f64::from(w)) as f32
    });
    scaled.collect()
}

/// Computes a product; `values` are the weight's, decoded and scaled.
pub(crate) fn linear(x: &[f32], weight: &Weight, values: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let (rows, columns) = (weight.rows, weight.columns);
    let rounded = rounds_weights(weight)
        .then(|| values.chunks_exact(columns).flat_map(through_halves).collect::<Vec<_>>());
    let values = rounded.as_deref().unwrap_or(values);
    let mut out = Vec::with_capacity(x.len() / columns * rows);
    for x in x.chunks_exact(columns) {
        let x = round_activations(x, weight.compute);
        for row in 0..rows {
            let product = dot(&x, &values[row * columns..][..columns]);
            out.push((product + bias.map_or(0.0, |bias| f64::from(bias[row]))) as f32);
        }
    }
    out
}

fn round_activations(x: &[f32], compute: Compute) -> Vec<f32> {
    match compute {
        Compute::F32 => x.to_vec(),
        Compute::Int8Block32 => {
            let (blocks, rest) = x.as_chunks::<ACTIVATION_BLOCK>();
            assert!(rest.is_empty(), "the spec checks that rows fill whole blocks");
            let rounded = blocks.iter().map(quantise_block);
            rounded.flat_map(|block| block.values.map(|q| block.scale * f32::from(q))).collect()
        }
        Compute::F16 => through_halves(x),
        Compute::Fp8 => through_e4m3(x),
    }
}

pub(super) fn rotary(
    x: &[f32],
    heads: usize,
    head_dim: usize,
    frequencies: &RotaryFrequencies,
    position_of: impl Fn(usize) -> [usize; 3],
) -> Vec<f32> {
    let mut out = x.to_vec();
    let half = frequencies.inverse.len();
    for (token, row) in out.chunks_exact_mut(heads * head_dim).enumerate() {
        let position = position_of(token).map(|axis| axis as f32);
        for head in row.chunks_exact_mut(head_dim) {
            for (i, inverse) in frequencies.inverse.iter().enumerate() {
                let axis = frequencies.axes.get(i).map_or(0, |axis| *axis as usize);
                let (sin, cos) = (position[axis] * inverse).sin_cos();
                let (sin, cos) = (sin * frequencies.factor, cos * frequencies.factor);
                let (a, b) = match frequencies.pairs {
                    RotaryPairs::Halves => (i, i + half),
                    RotaryPairs::Adjacent => (2 * i, 2 * i + 1),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
            }
        }
    }
    out
}

/// `x * sigmoid(gate)`, with one gate per `width` elements.
pub(super) fn sigmoid_gate(x: &[f32], gate: &[f32], width: usize) -> Vec<f32> {
    let gated = x.chunks_exact(width).zip(gate).flat_map(|(x, gate)| {
        let open = 1.0 / (1.0 + (-f64::from(*gate)).exp());
        x.iter().map(move |x| (f64::from(*x) * open) as f32)
    });
    gated.collect()
}

/// `cap tanh(x / cap)`.
pub(super) fn capped(x: &[f32], cap: f32) -> Vec<f32> {
    let cap = f64::from(cap);
    x.iter().map(|x| (cap * (f64::from(*x) / cap).tanh()) as f32).collect()
}

pub(crate) fn activated(x: &[f32], activation: Activation) -> Vec<f32> {
    x.iter().map(|x| activate(f64::from(*x), activation) as f32).collect()
}

pub(crate) fn gate(gate: &[f32], up: &[f32], activation: Activation) -> Vec<f32> {
    gate.iter().zip(up).map(|(g, u)| (activate(f64::from(*g), activation) * f64::from(*u)) as f32).collect()
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0) * x.max(0.0),
    }
}

/// The error function: its Maclaurin series near 0, its continued fraction beyond (Abramowitz & Stegun 7.1.5
/// and 7.1.14), to about 1e-15.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let magnitude = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..80 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..=60).rev().fold(a, |tail, n| a + f64::from(n) / 2.0 / tail);
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    magnitude.copysign(x)
}

/// `x sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// A causal convolution with SiLU at the last token of a window `[taps, channels]`; `weight` is
/// `[channels, taps]`, and `bias`, if there is one, `[channels]`.
pub(crate) fn convolve(window: &[f32], weight: &[f32], bias: Option<&[f32]>, channels: usize) -> Vec<f64> {
    let taps = window.len() / channels;
    let channel = |channel: usize| {
        let tap = |tap: usize| {
            f64::from(window[tap * channels + channel]) * f64::from(weight[channel * taps + tap])
        };
        let sum: f64 = (0..taps).map(tap).sum();
        silu(sum + bias.map_or(0.0, |bias| f64::from(bias[channel])))
    };
    (0..channels).map(channel).collect()
}

/// `ln(1 + e^x)`, without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::RankPart;
    use crate::spec::types::{FileTensor, ScaleForm, Scales, TensorClass};
    use monomorph_formats::Format;

    #[test]
    fn erf_is_the_tabulated_one() {
        // Abramowitz & Stegun, table 7.1.
        for (x, expected) in [(0.0, 0.0), (0.5, 0.5204998778), (1.0, 0.8427007929), (2.0, 0.9953222650)] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
        }
        assert!((erf(2.499_999) - erf(2.500_001)).abs() < 1e-7);
        assert!((erf(-3.0) + 0.9999779095).abs() < 1e-10);
    }

    fn weight(compute: Compute, scales: Option<Scales>) -> Weight {
        let (name, class, stored) = ("it".to_owned(), TensorClass::Ffn, Format::F32);
        let file = FileTensor { name: name.clone(), view: None };
        let (experts, file_shape) = (None, vec![1, 2]);
        let (negative_rates, cut) = (false, RankPart::default());
        let (rows, columns) = (1, 2);
        Weight {
            name,
            class,
            rows,
            columns,
            experts,
            file,
            file_shape,
            stored,
            compute,
            scales,
            negative_rates,
            cut,
        }
    }

    #[test]
    fn f16_products_round_both_operands_and_not_their_sum() {
        // 2^-11 is half an f16 ulp at 1: a tie, which rounds to 1. Three halves round to 1 + 2^-9.
        let (tie, above) = (1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11));
        let product = |x: &[f32], values: &[f32], weight: &Weight| linear(x, weight, values, None)[0];
        let plain = weight(Compute::F16, None);
        assert_eq!(product(&[tie, 0.0], &[1.0, 0.0], &plain), 1.0);
        assert_eq!(product(&[1.0, 0.0], &[above, 0.0], &plain), 1.0 + 2f32.powi(-9));
        assert_eq!(product(&[1.0, 2f32.powi(-20)], &[1.0, 1.0], &plain), 1.0 + 2f32.powi(-20));
        assert_eq!(product(&[tie, 0.0], &[above, 0.0], &weight(Compute::F32, None)), tie * above);
        // Values outside the range of f16 in both directions. 2^-38 below the largest is the smallest that
        // f16 keeps; half of it is a tie.
        assert_eq!(product(&[2f32.powi(90), 0.0], &[2f32.powi(-80), 0.0], &plain), 1024.0);
        assert_eq!(product(&[1.0, 2f32.powi(-38)], &[0.0, 1.0], &plain), 2f32.powi(-38));
        assert_eq!(product(&[1.0, 2f32.powi(-39)], &[0.0, 1.0], &plain), 0.0);
        // Codes with companions are exact in f16; their scales multiply sums.
        let scales = Scales { form: ScaleForm::Tensor, companions: Vec::new() };
        assert_eq!(product(&[1.0, 0.0], &[tie, 0.0], &weight(Compute::F16, Some(scales.clone()))), tie);
        // A table is read as it is kept for products with it.
        assert_eq!(embedding(&plain, &[tie, 0.0, 0.0, above], &[1, 0])[1..3], [1.0 + 2f32.powi(-9), 1.0]);
        assert_eq!(embedding(&weight(Compute::F32, None), &[tie, 0.0], &[0]), [tie, 0.0]);
        // In fp8 activations have four bits and weights are what codes and scales say.
        let fp8 = weight(Compute::Fp8, Some(scales));
        assert_eq!(product(&[448.0, 17.0], &[tie, 0.0], &fp8), 448.0 * tie);
        assert_eq!(product(&[448.0, 17.0], &[0.0, 1.0], &fp8), 16.0);
    }

    #[test]
    fn rotary_at_position_zero_is_the_identity_and_keeps_lengths_elsewhere() {
        let frequencies = RotaryFrequencies {
            inverse: vec![1.0, 0.1],
            factor: 1.0,
            pairs: RotaryPairs::Halves,
            axes: vec![],
        };
        let x = [1.0, 2.0, 3.0, 4.0, 9.0];
        let out = rotary(&[x, x].concat(), 1, 5, &frequencies, |token| [token; 3]);
        assert_eq!(&out[..5], &x);
        let length = |v: &[f32]| v.iter().map(|v| v * v).sum::<f32>();
        assert!((length(&out[5..]) - length(&x)).abs() < 1e-4);
        assert_eq!(out[9], 9.0);
        assert!((out[5] - (1f32.cos() - 3.0 * 1f32.sin())).abs() < 1e-6);
    }
}

//! The reference of the gated delta-net, token by token and as plainly as possible. The state is f64, so that
//! a comparison does not depend on how often a backend rounds its own to f32.

use super::graph::DeltaNet;
use super::state::DeltaShape;
use crate::blocks::Computed;
use crate::reference::Evaluation;
use crate::reference::ops::{convolve, softplus};
use crate::spec::types::ValueHeads;

/// Recurrent state of a sequence in one layer; empty before its first token.
#[derive(Clone, Debug, Default)]
struct State {
    /// The last `taps - 1` inputs of the convolution, oldest first: `[taps - 1, channels]`.
    window: Vec<f32>,
    /// `[value_heads, key_dim, value_dim]`.
    matrices: Vec<f64>,
}

/// Added under the root when q and k are normalised.
const EPS: f64 = 1e-6;

impl Computed for DeltaNet {
    /// Computes `o` from q, k, v, b and a, one row per token.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [q, k, v, b, a] = [0, 1, 2, 3, 4].map(|input| it.input(input));
        let [convolution, a_log, dt_bias] =
            [self.convolution, self.a_log, self.dt_bias].map(|weight| it.weight(weight));
        let (shape, state) = (self.shape, it.state::<State>());
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, taps } = shape;
        let (key_width, value_width, channels) = (shape.key_width(), shape.value_width(), shape.channels());
        state.window.resize((taps - 1) * channels, 0.0);
        state.matrices.resize(value_heads * key_dim * value_dim, 0.0);
        let mut out = Vec::with_capacity(v.len());
        for token in 0..v.len() / value_width {
            let row = |x: &'_ [f32], width: usize| x[token * width..][..width].to_vec();
            let raw = [row(q, key_width), row(k, key_width), row(v, value_width)].concat();
            state.window.extend(raw);
            let mixed = convolve(&state.window, convolution, None, channels);
            state.window.drain(..channels);
            let heads = |from: usize, by: f64| -> Vec<Vec<f64>> {
                let parts = mixed[from..from + key_width].chunks_exact(key_dim);
                let unit = |part: &[f64]| {
                    let length = (part.iter().map(|x| x * x).sum::<f64>() + EPS).sqrt();
                    part.iter().map(|x| x / length * by).collect()
                };
                parts.map(unit).collect()
            };
            let (queries, keys) = (heads(0, (key_dim as f64).powf(-0.5)), heads(key_width, 1.0));
            let values = &mixed[2 * key_width..];
            for head in 0..value_heads {
                let number = |x: &[f32]| f64::from(x[token * value_heads + head]);
                let step = softplus(number(a) + f64::from(dt_bias[head]));
                let decay = (-f64::from(a_log[head]).exp() * step).exp();
                let beta = 1.0 / (1.0 + (-number(b)).exp());
                let of = match self.order {
                    ValueHeads::Grouped => head * key_heads / value_heads,
                    ValueHeads::Tiled => head % key_heads,
                };
                let matrix = &mut state.matrices[head * key_dim * value_dim..][..key_dim * value_dim];
                matrix.iter_mut().for_each(|s| *s *= decay);
                let value = &values[head * value_dim..][..value_dim];
                let predicted = read(matrix, &keys[of], value_dim);
                for (row, key) in matrix.chunks_exact_mut(value_dim).zip(&keys[of]) {
                    for (s, (v, p)) in row.iter_mut().zip(value.iter().zip(&predicted)) {
                        *s += key * beta * (v - p);
                    }
                }
                out.extend(read(matrix, &queries[of], value_dim).iter().map(|o| *o as f32));
            }
        }
        out
    }
}

/// `S^T x`.
fn read(matrix: &[f64], x: &[f64], width: usize) -> Vec<f64> {
    let mut out = vec![0.0; width];
    for (row, x) in matrix.chunks_exact(width).zip(x) {
        out.iter_mut().zip(row).for_each(|(out, s)| *out += s * x);
    }
    out
}

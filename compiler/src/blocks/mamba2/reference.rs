//! The reference of Mamba-2, token by token and as plainly as possible. The state is f64, so that a
//! comparison does not depend on how often a backend rounds its own to f32.

use super::graph::Mamba2;
use super::spec::Shape;
use crate::blocks::Computed;
use crate::reference::Evaluation;
use crate::reference::ops::{convolve, silu, softplus};

/// Recurrent state of a sequence in one layer; empty before its first token.
#[derive(Clone, Debug, Default)]
struct State {
    /// The last `taps - 1` inputs of the convolution, oldest first: `[taps - 1, channels]`.
    window: Vec<f32>,
    /// `[heads, state, head_dim]`.
    matrices: Vec<f64>,
}

impl Computed for Mamba2 {
    /// Computes `u` from z, xbc and dt, one row per token.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [z, xbc, dt] = [0, 1, 2].map(|input| it.input(input));
        let [convolution, bias, a_log] =
            [self.convolution, self.convolution_bias, self.a_log].map(|id| it.weight(id));
        let [dt_bias, d, norm] = [self.dt_bias, self.d, self.norm].map(|id| it.weight(id));
        let Shape { heads, head_dim, groups, state: width, taps } = self.shape;
        let (inner, channels) = (self.shape.inner(), self.shape.channels());
        let state = it.state::<State>();
        state.window.resize((taps - 1) * channels, 0.0);
        state.matrices.resize(heads * width * head_dim, 0.0);
        let mut out = Vec::with_capacity(z.len());
        for token in 0..z.len() / inner {
            state.window.extend(&xbc[token * channels..][..channels]);
            let mixed = convolve(&state.window, convolution, Some(bias), channels);
            state.window.drain(..channels);
            let mut gated = Vec::with_capacity(inner);
            for head in 0..heads {
                let group = head * groups / heads;
                let x = &mixed[head * head_dim..][..head_dim];
                let [b, c] = [group, groups + group].map(|at| &mixed[inner + at * width..][..width]);
                let step = softplus(f64::from(dt[token * heads + head]) + f64::from(dt_bias[head]));
                let decay = (-f64::from(a_log[head]).exp() * step).exp();
                let mut y: Vec<f64> = x.iter().map(|x| f64::from(d[head]) * x).collect();
                let matrix = &mut state.matrices[head * width * head_dim..][..width * head_dim];
                for (row, (b, c)) in matrix.chunks_exact_mut(head_dim).zip(b.iter().zip(c)) {
                    for ((s, x), y) in row.iter_mut().zip(x).zip(&mut y) {
                        *s = decay * *s + b * step * x;
                        *y += c * *s;
                    }
                }
                let gates = &z[token * inner + head * head_dim..][..head_dim];
                gated.extend(y.iter().zip(gates).map(|(y, z)| y * silu(f64::from(*z))));
            }
            let part = inner / groups;
            for (group, weights) in gated.chunks_exact(part).zip(norm.chunks_exact(part)) {
                let mean = group.iter().map(|u| u * u).sum::<f64>() / part as f64;
                let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
                out.extend(group.iter().zip(weights).map(|(u, w)| (u * scale * f64::from(*w)) as f32));
            }
        }
        out
    }
}

//! The gated delta-net by its definition.

use crate::common::Owned;

/// One sequence's projections, and what has been computed of it.
pub struct Stream {
    pub qkvz: Vec<Vec<f32>>,
    pub ba: Vec<Vec<f32>>,
    pub slot: u32,
    pub done: usize,
    pub found: Vec<Vec<f32>>,
}

/// The weights of a layer.
pub struct Weights {
    pub convolution: Owned,
    pub a_log: Owned,
    pub dt_bias: Owned,
    pub norm: Owned,
}

/// Heads and widths.
#[derive(Clone, Copy)]
pub struct Shape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
}

/// Under the root of the norm.
pub const NORM_EPS: f32 = 1e-6;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// The definition, one sequence from its start, in f64: state decayed, prediction, correction, reading, each
/// in turn.
pub fn definition(shape: Shape, weights: &Weights, stream: &Stream) -> Vec<Vec<f64>> {
    let Shape { key_heads, value_heads, key_dim, value_dim, taps } = shape;
    let convolution = wide(&weights.convolution.values());
    let (a_log, dt_bias) = (wide(&weights.a_log.values()), wide(&weights.dt_bias.values()));
    let norm = wide(&weights.norm.values());
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    let unit = |x: &[f64]| -> Vec<f64> {
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    let mut states = vec![vec![vec![0.0f64; value_dim]; key_dim]; value_heads];
    let mut rows = Vec::new();
    for (t, (qkvz, ba)) in stream.qkvz.iter().zip(&stream.ba).enumerate() {
        let convolved: Vec<f64> = (0..channels)
            .map(|c| {
                let sum: f64 = (0..taps)
                    .filter(|tap| t + tap + 1 >= taps)
                    .map(|tap| convolution[c * taps + tap] * f64::from(stream.qkvz[t + tap + 1 - taps][c]))
                    .sum();
                sum * sigmoid(sum)
            })
            .collect();
        let (ba, gates) = (wide(ba), wide(&qkvz[channels..]));
        let mut out = Vec::new();
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let q = unit(&convolved[key_head * key_dim..][..key_dim]);
            let k = unit(&convolved[(key_heads + key_head) * key_dim..][..key_dim]);
            let v = &convolved[2 * key_heads * key_dim + head * value_dim..][..value_dim];
            let beta = sigmoid(ba[head]);
            let step = (ba[value_heads + head] + dt_bias[head]).exp().ln_1p();
            let decay = (-a_log[head].exp() * step).exp();
            let s = &mut states[head];
            s.iter_mut().flatten().for_each(|s| *s *= decay);
            for j in 0..value_dim {
                let predicted: f64 = (0..key_dim).map(|i| s[i][j] * k[i]).sum();
                for i in 0..key_dim {
                    s[i][j] += k[i] * beta * (v[j] - predicted);
                }
            }
            let o: Vec<f64> = (0..value_dim)
                .map(|j| (0..key_dim).map(|i| s[i][j] * q[i]).sum::<f64>() / (key_dim as f64).sqrt())
                .collect();
            let mean = o.iter().map(|o| o * o).sum::<f64>() / value_dim as f64;
            let scale = 1.0 / (mean + f64::from(NORM_EPS)).sqrt();
            for j in 0..value_dim {
                let z = gates[head * value_dim + j];
                out.push(z * sigmoid(z) * o[j] * scale * norm[j]);
            }
        }
        rows.push(out);
    }
    rows
}

//! Mamba-2's op and the layers built from it.

use super::spec::{self, Shape};
use crate::blocks::{Built, FieldForm, Operation};
use crate::graph::{BodyBuilder, Builder, Rows, ValueId, WeightId};

/// `(z, xbc, dt) -> u`: a causal convolution of `xbc` with bias and SiLU, which gives every head its part `x`
/// and its group's `B` and `C`; then for every head a state `S` `[state, head_dim]` that starts at zero; then
/// gate and norm (Dao & Gu, 2024). With `D_t = ln(1 + exp(dt + dt_bias))`, which is unbounded:
///
/// ```text
/// S <- exp(-exp(a_log) D_t) S + B (D_t x)^T;   y = S^T C + d x;   u = norm(y * silu(z))
/// ```
///
/// The norm is an RMS norm over each group's part of the row, with a weight per element.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// `[channels, taps]`; the last tap is the current token's.
    pub convolution: WeightId,
    /// Bias of the convolution: `[channels]`.
    pub convolution_bias: WeightId,
    /// Logarithm of the decay rate: `[heads]`.
    pub a_log: WeightId,
    /// Bias of the time step: `[heads]`.
    pub dt_bias: WeightId,
    /// Weight of the skip connection from x: `[heads]`.
    pub d: WeightId,
    /// `[heads * head_dim]`.
    pub norm: WeightId,
    /// Added to the mean square of a group.
    pub eps: f32,
    /// Heads and widths.
    pub shape: Shape,
}

impl Operation for Mamba2 {
    const NAME: &'static str = "mamba-2";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        let vectors = [self.convolution_bias, self.a_log, self.dt_bias, self.d, self.norm];
        let vectors = vectors.map(|it| (it, FieldForm::Vector));
        [(self.convolution, FieldForm::Convolution)].into_iter().chain(vectors).collect()
    }
}

impl Built for spec::Mamba2 {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> ValueId {
        let name = |part: &str| format!("layers.{{layer}}.mamba2.{part}");
        let projected = ["z", "xbc", "dt"].map(|part| graph.linear(body, part, &name(part), x, false));
        let op = Mamba2 {
            convolution: graph.weight(&name("convolution")),
            convolution_bias: graph.weight(&name("convolution_bias")),
            a_log: graph.weight(&name("a_log")),
            dt_bias: graph.weight(&name("dt_bias")),
            d: graph.weight(&name("d")),
            norm: graph.weight(&name("norm")),
            eps: self.eps,
            shape: self.shape,
        };
        let read = body.node("read", Rows::Tokens, self.shape.inner(), op, &projected);
        graph.linear(body, "o", &name("o"), read, false)
    }
}

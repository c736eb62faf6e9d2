//! Mamba-2's op and the layers built from it.

use super::spec::{self, Shape};
use crate::blocks::{Built, FieldForm, Operation, Share, Split};
use crate::graph::{BodyBuilder, Builder, RankPart, Rows, ValueId, Weight, WeightId};
use crate::spec::types::Ranks;
use monomorph_abi::cut::Segment;

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

    /// A rank has some of the groups, with their heads; the norm of a group stays on its rank.
    fn share(&self, _: &[Weight], Ranks { count: ranks, .. }: Ranks) -> Result<Share<Mamba2>, String> {
        let Shape { heads, head_dim, groups, state, .. } = self.shape;
        if !groups.is_multiple_of(ranks) {
            return Err(format!("{groups} groups of heads cannot be shared out to {ranks} ranks"));
        }
        let [inner, group, one] =
            [(heads, head_dim), (groups, state), (heads, 1)].map(|(units, unit)| Segment { units, unit });
        let channels = [inner, group, group];
        let mut op = self.clone();
        op.shape.heads /= ranks;
        op.shape.groups /= ranks;
        Ok(Share {
            op,
            inputs: [vec![inner], channels.to_vec(), vec![one]].map(Split::Columns).to_vec(),
            output: Split::Columns(vec![inner]),
            cuts: vec![
                (self.convolution, RankPart::rows(channels)),
                (self.convolution_bias, RankPart::rows(channels)),
                (self.a_log, RankPart::rows([one])),
                (self.dt_bias, RankPart::rows([one])),
                (self.d, RankPart::rows([one])),
                (self.norm, RankPart::rows([inner])),
            ],
        })
    }
}

impl Built for spec::Mamba2 {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let name = |part: &str| format!("layers.{{layer}}.mamba2.{part}");
        let projected = ["z", "xbc", "dt"].map(|part| graph.linear(body, part, &name(part), x, false));
        let op = Mamba2 {
            convolution: graph.weight(&name("convolution")),
            convolution_bias: graph.weight(&name("convolution_bias")),
            a_log: graph.decay(&name("a_log")),
            dt_bias: graph.weight(&name("dt_bias")),
            d: graph.weight(&name("d")),
            norm: graph.weight(&name("norm")),
            eps: self.eps,
            shape: self.shape,
        };
        let read = body.node("read", Rows::Tokens, self.shape.inner(), op, &projected);
        vec![graph.linear(body, "o", &name("o"), read, false)]
    }
}

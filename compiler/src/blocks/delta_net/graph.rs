//! The delta-net's op and the layers built from it.

use super::spec;
use super::state::DeltaShape;
use crate::blocks::{Built, FieldForm, Operation, Share, Split};
use crate::graph::{BodyBuilder, Builder, Op, RankPart, Rows, ValueId, Weight, WeightId};
use crate::spec::types::{Ranks, ValueHeads};
use monomorph_abi::cut::Segment;

/// `(q, k, v, b, a) -> o`: a causal convolution of q, k and v with SiLU, then for every value head a gated
/// delta rule over a state `S` `[key_dim, value_dim]` that starts at zero (Yang et al., 2024). `q` and `k`
/// have unit length (`eps` 1e-6 under the root), `q` is divided by `sqrt(key_dim)`, `beta = sigmoid(b)` and
/// `g = -exp(a_log) ln(1 + exp(a + dt_bias))`:
///
/// ```text
/// S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNet {
    /// `[channels, taps]` over q, k and v side by side; the last tap is the current token's.
    pub convolution: WeightId,
    /// Logarithm of the decay rate: `[value_heads]`.
    pub a_log: WeightId,
    /// Bias of the decay's time step: `[value_heads]`.
    pub dt_bias: WeightId,
    /// Heads and widths.
    pub shape: DeltaShape,
    /// Which key head a value head reads.
    pub order: ValueHeads,
}

impl Operation for DeltaNet {
    const NAME: &'static str = "delta-net";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        let vectors = [self.a_log, self.dt_bias].map(|it| (it, FieldForm::Vector));
        [(self.convolution, FieldForm::Convolution)].into_iter().chain(vectors).collect()
    }

    fn unbuilt(&self) -> Option<&'static str> {
        (self.order == ValueHeads::Tiled)
            .then_some("value heads in tiled order (`value_heads` of [checkpoint])")
    }

    /// A rank has some of the key heads, with their value heads: in tiled order some of every run of them.
    fn share(&self, _: &[Weight], Ranks { count: ranks, .. }: Ranks) -> Result<Share<DeltaNet>, String> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        if !key_heads.is_multiple_of(ranks) {
            return Err(format!("{key_heads} key heads cannot be shared out to {ranks} ranks"));
        }
        let key = Segment { units: key_heads, unit: key_dim };
        let runs = match self.order {
            ValueHeads::Grouped => 1,
            ValueHeads::Tiled => value_heads / key_heads,
        };
        let [value, one] = [value_dim, 1].map(|unit| vec![Segment { units: value_heads / runs, unit }; runs]);
        let channels = [vec![key, key], value.clone()].concat();
        let columns = |segments: &[Segment]| Split::Columns(segments.to_vec());
        let mut op = self.clone();
        op.shape.key_heads /= ranks;
        op.shape.value_heads /= ranks;
        Ok(Share {
            op,
            inputs: [&[key], &[key], &value[..], &one, &one].map(columns).to_vec(),
            output: columns(&value),
            cuts: vec![
                (self.convolution, RankPart::rows(channels)),
                (self.a_log, RankPart::rows(one.clone())),
                (self.dt_bias, RankPart::rows(one)),
            ],
        })
    }
}

impl Built for spec::DeltaNet {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let name = |part: &str| format!("layers.{{layer}}.delta.{part}");
        let [q, k, v, z, b, a] =
            ["q", "k", "v", "z", "b", "a"].map(|part| graph.linear(body, part, &name(part), x, false));
        let op = DeltaNet {
            convolution: graph.weight(&name("convolution")),
            a_log: graph.decay(&name("a_log")),
            dt_bias: graph.weight(&name("dt_bias")),
            shape: self.shape,
            order: graph.value_heads(self.shape.key_heads, self.shape.value_heads),
        };
        let width = self.shape.value_width();
        let read = body.node("read", Rows::Tokens, width, op, &[q, k, v, b, a]);
        let normed = graph.norm(body, &name("norm"), self.norm, read, self.shape.value_heads);
        let op = Op::Gate { activation: self.activation };
        let gated = body.node("gated", Rows::Tokens, width, op, &[z, normed]);
        vec![graph.linear(body, "o", &name("o"), gated, false)]
    }
}

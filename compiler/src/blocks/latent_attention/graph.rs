//! The op of attention over latents and the layers built from it.

use super::spec::{self, QueryScale};
use crate::blocks::attention::cuda::GROUPED_WIDTHS;
use crate::blocks::{Built, FieldForm, Operation, Share, Split};
use crate::graph::{BodyBuilder, Builder, Op, RankPart, Rows, ValueId, Weight, WeightId};
use crate::spec::types::Ranks;
use monomorph_abi::cut::Segment;
use monomorph_formats::cached::{Cached, KvFormats};

/// `(q, q_r, c, k_r) -> softmax(scale (q K^T + q_r k_r^T)) V` over the sequence's cache, to which `c` and
/// `k_r` of every row of the step are added first: head `h` has the keys `K_h c` and the values `V_h c` of
/// the latents `c`, and all heads share the rotated keys `k_r`. Both parts of a query are multiplied by
/// [`QueryScale`] of its position before. A query attends to positions up to its own (DeepSeek-AI, 2024).
///
/// A backend may make keys and values of what the cache has, or multiply `K_h` into queries and `V_h` into
/// sums of latents.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// `K_h` above `V_h`, head by head: `[heads * (key_dim + value_dim), latent]`.
    pub made: WeightId,
    /// Heads and widths.
    pub shape: Shape,
    /// Multiplies the scores.
    pub scale: f32,
    /// What multiplies queries, if anything does.
    pub query_scale: Option<QueryScale>,
    /// How `c` is kept, and `k_r` unless that is narrow ([`Self::rotated_format`]).
    pub format: Cached,
}

impl LatentAttention {
    /// How `k_r` is kept: bf16 beside latents of fewer bits. It is neither normed nor rotated with them.
    pub fn rotated_format(&self) -> Cached {
        if self.format.is_narrow() { Cached::Bf16 } else { self.format }
    }
}

/// Heads and widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads, each with a key and a value of its own.
    pub heads: usize,
    /// Width of a head's key, besides what rotates.
    pub key_dim: usize,
    /// Width of the rotated key.
    pub rotated: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Width of a latent.
    pub latent: usize,
}

impl Shape {
    /// Width of a latent and its rotated key.
    pub fn width(&self) -> usize {
        self.latent + self.rotated
    }

    /// Rows of what makes keys and values, of all heads.
    pub fn made(&self) -> usize {
        self.heads * (self.key_dim + self.value_dim)
    }
}

impl Operation for LatentAttention {
    const NAME: &'static str = "latent-attention";

    fn kv(&self) -> Option<(usize, KvFormats)> {
        Some((1, KvFormats::both(self.format)))
    }

    fn unbuilt(&self) -> Option<&'static str> {
        match self.format {
            Cached::Nvfp4 | Cached::Turbo8 | Cached::Turbo4 | Cached::Turbo3
                if !GROUPED_WIDTHS.contains(&self.shape.latent) =>
            {
                return Some(
                    "latents of another width than 64, 128, 256 and 512 in formats with scales of groups: \
                     bf16, f16 or fp8",
                );
            }
            Cached::Fp8 if !self.shape.latent.is_multiple_of(16) => {
                return Some("latents kept as fp8 of a width that no 16 divides: bf16 or f16");
            }
            _ => {}
        }
        let Shape { key_dim, value_dim, latent, .. } = self.shape;
        let whole = [key_dim, value_dim, latent, self.shape.width()].iter().all(|it| it.is_multiple_of(8));
        // A block of latent_queries has a warp for each 32 latents, and holds a head's keys of them.
        match whole && latent <= 512 && key_dim <= 128 {
            true => None,
            false => Some(
                "attention over latents of more than 512, of keys of more than 128, or of widths that no 8 divides",
            ),
        }
    }

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        let Shape { heads, key_dim, .. } = self.shape;
        vec![(self.made, FieldForm::Heads { heads, key_dim })]
    }

    /// A rank has some of the heads. Every rank has all latents and rotated keys.
    fn share(
        &self,
        _: &[Weight],
        Ranks { count: ranks, .. }: Ranks,
    ) -> Result<Share<LatentAttention>, String> {
        let Shape { heads, key_dim, rotated, value_dim, .. } = self.shape;
        if !heads.is_multiple_of(ranks) {
            return Err(format!("{heads} heads cannot be shared out to {ranks} ranks"));
        }
        let mut op = self.clone();
        op.shape.heads /= ranks;
        let made = Segment { units: heads, unit: key_dim + value_dim };
        Ok(Share {
            op,
            inputs: vec![
                Split::units(heads, key_dim),
                Split::units(heads, rotated),
                Split::Whole,
                Split::Whole,
            ],
            output: Split::units(heads, value_dim),
            cuts: vec![(self.made, RankPart::rows([made]))],
        })
    }
}

impl Built for spec::LatentAttention {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let name = |part: &str| format!("layers.{{layer}}.latent.{part}");
        let shape = Shape {
            heads: self.heads,
            key_dim: self.key_dim,
            rotated: self.rotary.dims,
            value_dim: self.value_dim,
            latent: self.latent,
        };
        let project = |graph: &mut Builder, body: &mut BodyBuilder, part: &str, x| {
            graph.linear(body, part, &name(part), x, false)
        };
        let queries = |graph: &mut Builder, body: &mut BodyBuilder, x| {
            ["q", "q_rotated"].map(|part| project(graph, body, part, x))
        };
        let frequencies = graph.frequencies(&self.rotary);
        let rotate = |body: &mut BodyBuilder, name: &str, x, heads: usize| {
            let op = Op::Rotary { heads, head_dim: shape.rotated, frequencies: frequencies.clone() };
            body.node(name, Rows::Tokens, heads * shape.rotated, op, &[x])
        };
        // All that reads normed rows comes before what reads a latent.
        let keys = |graph: &mut Builder, body: &mut BodyBuilder| {
            ["kv_a", "k_rotated"].map(|part| project(graph, body, part, x))
        };
        let ([q, q_rotated], [latent, k_rotated]) = match self.query_latent {
            None => (queries(graph, body, x), keys(graph, body)),
            Some(_) => {
                let of_latent = project(graph, body, "q_a", x);
                let keys = keys(graph, body);
                let read = graph.norm(body, &name("q_norm"), self.norm, of_latent, 1);
                (queries(graph, body, read), keys)
            }
        };
        let latent = graph.norm(body, &name("kv_norm"), self.norm, latent, 1);
        let q_rotated = rotate(body, "q_turned", q_rotated, shape.heads);
        let k_rotated = rotate(body, "k_turned", k_rotated, 1);
        let op = LatentAttention {
            made: graph.weight(&name("kv")),
            shape,
            scale: self.scale.unwrap_or(1.0 / ((self.key_dim + shape.rotated) as f32).sqrt()),
            query_scale: self.query_scale,
            // The spec checks that both are the same.
            format: graph.kv().keys,
        };
        let width = shape.heads * shape.value_dim;
        let context = body.node("context", Rows::Tokens, width, op, &[q, q_rotated, latent, k_rotated]);
        vec![graph.linear(body, "o", &name("o"), context, false)]
    }
}

//! Attention's op and the layers built from it.

use super::spec;
use crate::blocks::{Built, Operation, Share, Split};
use crate::graph::{BodyBuilder, Builder, Op, Rows, ValueId, Weight};
use crate::spec::types::Ranks;
use monomorph_abi::cut::Segment;
use monomorph_formats::cached::KvFormats;

/// `(q, k, v) -> softmax(scale q K^T) V` over the sequence's cache. `k` and `v` of every row of the step are
/// added to the cache first; a query attends to positions up to its own, of these only to the last `window`,
/// its own among them, if there is one. Query head `h` reads K/V head `h * kv_heads / heads` (Ainslie et al.,
/// 2023).
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Positions that a query attends to at most: what a cache may forget is what lies before them.
    pub window: Option<usize>,
    /// Whether a query that stands for a part of an image, or of a drafter's block, attends to positions up
    /// to the end of it, all of which are rows of the same step.
    pub image_spans: bool,
    /// Whether it is of a drafter of blocks: that keeps all blocks of a sequence, whatever its window.
    pub of_drafter: bool,
    /// How `k` and `v` are kept: a query attends to what is read back of them.
    pub kv: KvFormats,
}

impl Operation for Attention {
    const NAME: &'static str = "attention";

    fn kv(&self) -> Option<(usize, KvFormats)> {
        Some((self.kv_heads, self.kv))
    }

    /// A rank has some of the query heads, and the K/V heads that these read. With fewer K/V heads than
    /// ranks, several ranks have the same one.
    fn share(&self, _: &[Weight], Ranks { count: ranks, .. }: Ranks) -> Result<Share<Attention>, String> {
        let Attention { heads, kv_heads, head_dim, scale, window, image_spans, of_drafter, kv: formats } =
            *self;
        let kv = Segment { units: kv_heads, unit: head_dim };
        if !heads.is_multiple_of(ranks) || !kv.divides(ranks) {
            return Err(format!(
                "{heads} query heads with {kv_heads} K/V heads cannot be shared out to {ranks} ranks"
            ));
        }
        // Every rank has an only K/V head.
        let kv_rows = if kv_heads == 1 { Split::Whole } else { Split::Columns(vec![kv]) };
        let q = Split::units(heads, head_dim);
        Ok(Share {
            op: Attention {
                heads: heads / ranks,
                kv_heads: kv.share(ranks),
                head_dim,
                scale,
                window,
                image_spans,
                of_drafter,
                kv: formats,
            },
            inputs: vec![q.clone(), kv_rows.clone(), kv_rows],
            output: q,
            cuts: Vec::new(),
        })
    }
}

/// `(k, v, c) -> c`: adds `k` and `v` of every row to the cache of the drafter's layers of a kind, in which
/// [`Attention`] reads them, and passes `c` on.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepContext {
    /// The kind, of those that the drafter has.
    pub kind: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// How `k` and `v` are kept.
    pub kv: KvFormats,
}

impl Operation for KeepContext {
    const NAME: &'static str = "keep-context";

    fn kv(&self) -> Option<(usize, KvFormats)> {
        Some((self.kv_heads, self.kv))
    }
}

impl spec::Attention {
    /// Adds what a layer of a drafter keeps of a token that the model was fed: keys and values of its first
    /// value, without a norm before them. The last value is that first one.
    pub(crate) fn keep_context(&self, graph: &mut Builder, body: &mut BodyBuilder, kind: usize) {
        let context = ValueId(0);
        let [mut k, v] = ["k", "v"].map(|part| {
            graph.linear(body, part, &format!("layers.{{layer}}.attention.{part}"), context, false)
        });
        if let Some(norm) = self.qk_norm {
            k = graph.norm(body, "layers.{layer}.attention.k_norm", norm, k, self.kv_heads);
        }
        let (heads, head_dim) = (self.kv_heads, self.head_dim);
        if let Some(rotary) = &self.rotary {
            let op = Op::Rotary { heads, head_dim, frequencies: graph.frequencies(rotary) };
            k = body.node("k_rotated", Rows::Tokens, heads * head_dim, op, &[k]);
        }
        let op = KeepContext { kind, kv_heads: heads, head_dim, kv: graph.kv() };
        let width = body.width(context);
        body.node("context_out", Rows::Tokens, width, op, &[k, v, context]);
    }
}

impl Built for spec::Attention {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let mut project = |body: &mut BodyBuilder, part: &str| {
            graph.linear(body, part, &format!("layers.{{layer}}.attention.{part}"), x, self.qkv_bias)
        };
        let mut q = project(body, "q");
        let gate = self.gate.then(|| project(body, "gate"));
        let mut k = project(body, "k");
        // What keys are made of, before it is normed and rotated.
        let mut v = if self.keys_as_values { k } else { project(body, "v") };
        if let Some(norm) = self.qk_norm {
            let groups = |heads| if self.norm_rows { 1 } else { heads };
            q = graph.norm(body, "layers.{layer}.attention.q_norm", norm, q, groups(self.heads));
            k = graph.norm(body, "layers.{layer}.attention.k_norm", norm, k, groups(self.kv_heads));
        }
        if let Some(eps) = self.v_norm {
            let width = self.kv_heads * self.head_dim;
            let op = Op::Normalise { eps, groups: self.kv_heads };
            v = body.node("v_normed", Rows::Tokens, width, op, &[v]);
        }
        if let Some(rotary) = &self.rotary {
            let frequencies = graph.frequencies(rotary);
            let mut rotate = |name: &str, x, heads| {
                let op = Op::Rotary { heads, head_dim: self.head_dim, frequencies: frequencies.clone() };
                body.node(name, Rows::Tokens, heads * self.head_dim, op, &[x])
            };
            q = rotate("q_rotated", q, self.heads);
            k = rotate("k_rotated", k, self.kv_heads);
        }
        let op = Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt()),
            window: self.window,
            image_spans: graph.image_spans(),
            of_drafter: graph.of_drafter(),
            kv: graph.kv(),
        };
        let width = self.heads * self.head_dim;
        let mut mixed = body.node("context", Rows::Tokens, width, op, &[q, k, v]);
        if let Some(gate) = gate {
            mixed = body.node("context_gated", Rows::Tokens, width, Op::SigmoidGate, &[mixed, gate]);
        }
        vec![graph.linear(body, "o", "layers.{layer}.attention.o", mixed, self.output_bias)]
    }
}

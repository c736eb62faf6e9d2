//! Attention's phases: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use super::graph;
use super::kernels::AttentionDecode;
use crate::emit::call::Call;
use crate::emit::names::{Scratch, Working};
use crate::graph::{Op, RotaryFrequencies};
use crate::kernels::{Arguments, Signature};
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, Slice};
use crate::passes::{PassError, pass_error};
use crate::plan::cuda::{Cut, Launch};
use crate::plan::{BufferId, FieldId, Keeps, KvHeads, Plan, Work};
use crate::spec::types::{Compute, Target, TensorClass};
use monomorph_abi::kv;
use monomorph_formats::cached::KvFormats;
use proc_macro2::TokenStream;

/// Norms of q and k heads, rotary, K/V write, attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// q, k and v side by side; a gated result has its gates between q and k.
    pub qkv: BufferId,
    /// Whether every element of the result is multiplied by the sigmoid of its gate.
    pub gated: bool,
    /// Norm of the query heads.
    pub q_norm: Option<FieldId>,
    /// Norm of the key heads.
    pub k_norm: Option<FieldId>,
    /// Whether a norm is over all heads of a row together, not over each.
    pub norm_rows: bool,
    /// Ranks that have a part each of what a norm is over, of queries and of keys: they exchange a row's sums
    /// of squares. 1 where a rank has all of it.
    pub norm_ranks: [usize; 2],
    /// Added to the mean square in a norm of value heads without a weight, if they are normed.
    pub v_norm: Option<f32>,
    /// Whether values are what keys are made of: then a row has no values.
    pub keys_as_values: bool,
    /// Positions that a query attends to at most.
    pub window: Option<usize>,
    /// Whether the tokens of an image, or the rows of a drafter's block, attend to all of it.
    pub image_spans: bool,
    /// Whether it is of a drafter of blocks.
    pub of_drafter: bool,
    /// Formats of keys and values.
    pub kv: KvFormats,
    /// Rotary frequencies, if heads are rotated.
    pub frequencies: Option<RotaryFrequencies>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// One context vector per query head.
    pub out: BufferId,
}

impl Kind for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.qkv], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        self.q_norm.into_iter().chain(self.k_norm).collect()
    }

    fn sends(&self, _: &Plan) -> Option<usize> {
        self.sums()
    }

    fn work(&self, work: &mut Work) {
        let (tokens, context) = (work.given.tokens, work.given.context);
        if let Some(values) = self.sums() {
            work.exchange(values, tokens);
        }
        let quant = &work.target.quant;
        let layout = kv::Layout::cuda(self.kv_heads, self.head_dim, quant.kv_block, self.kv);
        // Each tile of queries reads what it sees of the cache once; a step's tokens are written to it once.
        let seen = self.window.map_or(context, |window| context.min(window));
        work.cost.kv_bytes = ((seen + tokens) * layout.token_bytes()) as f64;
        let pairs = tokens * context + tokens * (tokens + 1) / 2;
        let pairs = self.window.map_or(pairs, |window| pairs.min(tokens * window));
        let products = (2 * pairs * self.heads * self.head_dim) as f64;
        // Decode attention reads the cache for a few queries, without tensor cores; prefill attention is a
        // matrix product.
        match (work.target.hardware.cuda(), quant.compute.classes.get(&TensorClass::Attention)) {
            (Some(_), Some(Compute::F16 | Compute::Fp8)) if tokens > 1 => work.cost.bf16_products = products,
            (Some(_), Some(Compute::F32 | Compute::Int8Block32)) => work.cost.f64_products = products,
            _ => work.cost.f32_products = products,
        }
    }

    fn working(&self, plan: &Plan) -> Vec<Working> {
        Attention::working(self, plan)
    }

    fn scratch(&self, plan: &Plan) -> Option<Scratch> {
        Some(Attention::scratch(self, plan))
    }

    fn keeps(&self, target: &Target) -> Option<Keeps> {
        let (heads, head_dim, window) = (self.kv_heads, self.head_dim, self.behind(target));
        Some(Keeps::Blocks(KvHeads { heads, head_dim, latent: None, window }, self.kv))
    }

    fn frequencies(&self) -> Option<&RotaryFrequencies> {
        self.frequencies.as_ref()
    }

    // Where its grid ends, no other block shares the multiprocessor.
    fn fills_registers(&self) -> bool {
        self.head_dim > 128
    }

    fn cut(&self, kernel: &Signature) -> Option<Cut> {
        let kv_heads = u32::try_from(self.kv_heads).ok()?;
        (kernel == AttentionDecode::SIGNATURE).then_some(Cut::Attention { kv_heads })
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.attention(site, self, launches)
    }
}

impl Attention {
    /// The window behind which its layers give back blocks, if they do.
    pub(super) fn behind(&self, target: &Target) -> Option<usize> {
        // Messages between ranks carry one table of blocks, and so do the headers of draft passes, which a
        // CUDA device makes itself.
        let one_table = target.ranks > 1 || (target.hardware.cuda().is_some() && target.draft_passes());
        self.window.filter(|window| !one_table && !self.of_drafter && *window < target.model.context)
    }

    /// Sums of squares of a row that a rank sends to every other one, if any.
    fn sums(&self) -> Option<usize> {
        let shared = self.norm_ranks.iter().any(|ranks| *ranks > 1);
        shared.then_some(self.norm_ranks.len())
    }
}

/// Norm of k heads, rotary, K/V write: what layers of a drafter keep of a token that the model was fed.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepContext {
    /// k and v side by side.
    pub kv: BufferId,
    /// Norm of the key heads.
    pub k_norm: FieldId,
    /// Rotary frequencies.
    pub frequencies: RotaryFrequencies,
    /// The kind of layer, of those that the drafter has.
    pub kind: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Formats of keys and values.
    pub formats: KvFormats,
    /// Residual stream, which holds what they are made of and is left as it is.
    pub context: BufferId,
}

impl Kind for KeepContext {
    fn name(&self) -> &'static str {
        "keep-context"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.kv], vec![self.context])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.k_norm]
    }

    fn work(&self, work: &mut Work) {
        let layout = kv::Layout::cpu(self.kv_heads, self.head_dim, work.target.quant.kv_block, self.formats);
        work.cost.kv_bytes = (work.given.tokens * layout.token_bytes()) as f64;
    }

    fn frequencies(&self) -> Option<&RotaryFrequencies> {
        Some(&self.frequencies)
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, _: &mut Launcher, _: Site, _: &mut Vec<Launch>) -> Result<(), PassError> {
        Err(pass_error!("the CUDA backend has no kernels for `{}` of a drafter of blocks", self.name()))
    }
}

/// Attention's fusion rules.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "attention",
        pattern: "qr = rotary(q); kr = rotary(k); out = attention(qr, kr, v) \
                  where q is linear, k is linear, out feeds linear",
        matrices: &[],
        buffers: &[],
        lower: |it| lower(it, "out", [None; 2], None),
    },
    Fusion {
        name: "attention-unrotated",
        pattern: "out = attention(q, k, v) where q is linear, k is linear, out feeds linear",
        matrices: &[],
        buffers: &[],
        lower: |it| lower(it, "out", [None; 2], None),
    },
    Fusion {
        name: "attention-normed",
        pattern: "qn = rms-norm(q); kn = rms-norm(k); qr = rotary(qn); kr = rotary(kn); \
                  out = attention(qr, kr, v) where v is linear, out feeds linear",
        matrices: &[],
        buffers: &[],
        lower: |it| lower(it, "out", [Some("qn"), Some("kn")], None),
    },
    Fusion {
        name: "attention-values-normed",
        pattern: "qn = rms-norm(q); kn = rms-norm(k); vn = normalise(v); qr = rotary(qn); kr = rotary(kn); \
                  out = attention(qr, kr, vn) where out feeds linear",
        matrices: &[],
        buffers: &[],
        lower: |it| lower(it, "out", [Some("qn"), Some("kn")], None),
    },
    // The result is gated by a projection of its own.
    Fusion {
        name: "attention-gated",
        pattern: "qn = rms-norm(q); kn = rms-norm(k); qr = rotary(qn); kr = rotary(kn); \
                  c = attention(qr, kr, v); out = sigmoid-gate(c, g)",
        matrices: &[],
        buffers: &[],
        lower: |it| lower(it, "c", [Some("qn"), Some("kn")], Some("g")),
    },
    // What a drafter keeps of a token.
    Fusion {
        name: "keep-context",
        pattern: "kn = rms-norm(k); kr = rotary(kn); out = keep-context(kr, v, residual)",
        matrices: &[],
        buffers: &[],
        lower: keep_context,
    },
];

fn keep_context(it: &Lowering) -> Result<PhaseKind, PassError> {
    let graph::KeepContext { kind, kv_heads, head_dim, kv: formats } = *it.block_op("out");
    let Op::Rotary { frequencies, .. } = it.op("kr") else { unreachable!("the rule says rotary") };
    let (kv, context) = (it.whole("k")?, it.whole("residual")?);
    if it.slice("v") != (Slice { buffer: kv, column: kv_heads * head_dim }) {
        return Err(pass_error!("k and v of `{}` do not stand side by side", it.body.name));
    }
    let (k_norm, frequencies) = (it.norm("kn"), frequencies.clone());
    Ok(KeepContext { kv, k_norm, frequencies, kind, kv_heads, head_dim, formats, context }.into())
}

/// `context` is the result of attention; `gates`, if any, multiply it.
fn lower(
    it: &Lowering,
    context: &str,
    norms: [Option<&str>; 2],
    gates: Option<&str>,
) -> Result<PhaseKind, PassError> {
    let graph::Attention { heads, kv_heads, head_dim, scale, window, image_spans, of_drafter, kv } =
        *it.block_op(context);
    let [frequencies, of_keys] = ["qr", "kr"].map(|rotated| match it.given(rotated) {
        Some(Op::Rotary { frequencies, .. }) => Some(frequencies),
        _ => None,
    });
    if frequencies != of_keys {
        return Err(pass_error!("q and k of `{}` turn by different angles", it.body.name));
    }
    let qkv = it.whole("q")?;
    let queries = heads * head_dim * if gates.is_some() { 2 } else { 1 };
    let keys_as_values = it.slice("v") == it.slice("k");
    let values = queries + if keys_as_values { 0 } else { kv_heads * head_dim };
    let mut expected = vec![("k", queries), ("v", values)];
    expected.extend(gates.map(|gates| (gates, heads * head_dim)));
    if expected.iter().any(|(name, column)| it.slice(name) != Slice { buffer: qkv, column: *column }) {
        return Err(pass_error!("q, k and v of `{}` do not stand side by side", it.body.name));
    }
    let [q_norm, k_norm] = norms.map(|name| name.map(|name| it.norm(name)));
    let over_heads = |(name, heads): (&Option<&str>, usize)| {
        let Some(Op::RmsNorm { groups, ranks, .. }) = name.map(|name| it.op(name)) else { return true };
        *groups == heads && *ranks == 1
    };
    let norm_rows = !norms.iter().zip([heads, kv_heads]).all(over_heads);
    let norm_ranks = norms.map(|name| match name.map(|name| it.op(name)) {
        Some(Op::RmsNorm { ranks, .. }) => *ranks,
        _ => 1,
    });
    let v_norm = match it.given("vn") {
        Some(Op::Normalise { eps, .. }) => Some(*eps),
        _ => None,
    };
    if norm_rows && keys_as_values {
        return Err(pass_error!(
            "keys of `{}` are values and normed by rows, which no phase does",
            it.body.name
        ));
    }
    let (gated, frequencies, out) = (gates.is_some(), frequencies.cloned(), it.whole("out")?);
    Ok(Attention {
        qkv,
        gated,
        q_norm,
        k_norm,
        norm_rows,
        norm_ranks,
        v_norm,
        keys_as_values,
        window,
        image_spans,
        of_drafter,
        kv,
        frequencies,
        heads,
        kv_heads,
        head_dim,
        scale,
        out,
    }
    .into())
}

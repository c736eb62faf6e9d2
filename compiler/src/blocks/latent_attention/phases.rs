//! Phases of attention over latents: rules, operands, cost.

use super::super::{Kind, PhaseKind, ProjectDelta};
use super::graph::{self, Shape};
use super::spec::QueryScale;
use crate::blocks::products::{apart, project};
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::graph::{Op, RotaryFrequencies};
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, Slice};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Keeps, KvHeads, Plan, Work};
use crate::spec::types::Target;
use monomorph_abi::kv;
use monomorph_formats::cached::{Cached, KvFormats};
use proc_macro2::TokenStream;

/// Norm of latents, rotary, write of the cache, attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Queries, then their parts that rotate.
    pub q: BufferId,
    /// The latent, then the key that rotates.
    pub kv: BufferId,
    /// Norm of latents.
    pub norm: FieldId,
    /// What makes keys and values of latents.
    pub made: FieldId,
    /// Rotary frequencies.
    pub frequencies: RotaryFrequencies,
    /// Heads and widths.
    pub shape: Shape,
    /// Multiplies the scores.
    pub scale: f32,
    /// What multiplies queries, if anything does.
    pub query_scale: Option<QueryScale>,
    /// Format of what is kept.
    pub format: Cached,
    /// One context vector per head.
    pub out: BufferId,
}

impl Kind for LatentAttention {
    fn name(&self) -> &'static str {
        "latent-attention"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.q, self.kv], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.made]
    }

    fn work(&self, work: &mut Work) {
        let (tokens, context) = (work.given.tokens, work.given.context);
        let Shape { heads, latent, .. } = self.shape;
        let width = self.shape.width();
        let quant = &work.target.quant;
        let layout =
            kv::Layout::cuda(1, width, quant.kv_block, KvFormats::both(self.format)).of_latents(latent);
        work.cost.kv_bytes = ((context + tokens) * layout.token_bytes()) as f64;
        work.cost.weight_bytes += work.field(self.made).bytes(&work.target.hardware.kind) as f64;
        // Queries are multiplied by what makes keys, sums of latents by what makes values; all heads read the
        // same keys, and sum their leading parts.
        let pairs = tokens * context + tokens * (tokens + 1) / 2;
        let products = (tokens * self.shape.made() * latent + pairs * heads * (width + latent)) as f64;
        // A CUDA device multiplies on tensor cores, in decode too: all heads of a row are one tile.
        match work.target.hardware.cuda() {
            Some(_) => work.cost.bf16_products = products,
            None => work.cost.f32_products = products,
        }
    }

    fn scratch(&self, plan: &Plan) -> Option<Scratch> {
        Some(LatentAttention::scratch(self, plan))
    }

    fn keeps(&self, _: &Target) -> Option<Keeps> {
        let Shape { latent, .. } = self.shape;
        let heads = KvHeads { heads: 1, head_dim: self.shape.width(), latent: Some(latent), window: None };
        Some(Keeps::Blocks(heads, KvFormats::both(self.format)))
    }

    fn frequencies(&self) -> Option<&RotaryFrequencies> {
        Some(&self.frequencies)
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.latent_attention(site, self, launches)
    }
}

/// Fusion rules of attention over latents.
pub const FUSIONS: &[Fusion] = &[
    // Queries are made of a latent of their own.
    Fusion {
        name: "project-latents",
        pattern: "n = rms-norm(x); q = linear(n); c = linear(n); k = linear(n) \
                  where q feeds rms-norm, c feeds rms-norm, k feeds rotary",
        matrices: &[(&["q"], Stacked), (&["c", "k"], Stacked)],
        buffers: &[&["q"], &["c", "k"]],
        lower: latents,
    },
    Fusion {
        name: "project-latent",
        pattern: "n = rms-norm(x); q = linear(n); r = linear(n); c = linear(n); k = linear(n) \
                  where q feeds latent-attention, r feeds rotary, c feeds rms-norm, k feeds rotary",
        matrices: &[(&["q", "r"], Stacked), (&["c", "k"], Stacked)],
        buffers: &[&["q", "r"], &["c", "k"]],
        lower: latents,
    },
    Fusion {
        name: "project-queries",
        pattern: "n = rms-norm(x); q = linear(n); r = linear(n) where q feeds latent-attention, r feeds rotary",
        matrices: &[(&["q", "r"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q"),
    },
    Fusion {
        name: "latent-attention",
        pattern: "n = rms-norm(c); rt = rotary(r); kt = rotary(k); out = latent-attention(q, rt, n, kt) \
                  where q is linear, c is linear, out feeds linear",
        matrices: &[],
        buffers: &[],
        lower: attention,
    },
];

/// Two products of one norm: of what queries are made of, and of the latent with its key.
fn latents(it: &Lowering) -> Result<PhaseKind, PassError> {
    if let Some(apart) = apart(it)? {
        return Ok(apart.into());
    }
    Ok(ProjectDelta {
        x: it.whole("x")?,
        norm: it.norm("n"),
        matrix: it.matrix("q"),
        gates: it.matrix("c"),
        out: it.whole("q")?,
        gates_out: it.whole("c")?,
    }
    .into())
}

fn attention(it: &Lowering) -> Result<PhaseKind, PassError> {
    let graph::LatentAttention { shape, scale, query_scale, format, .. } = *it.block_op("out");
    let [Op::Rotary { frequencies, .. }, Op::Rotary { frequencies: of_keys, .. }] =
        ["rt", "kt"].map(|rotated| it.op(rotated))
    else {
        unreachable!("the rule says rotary")
    };
    if frequencies != of_keys {
        return Err(pass_error!("q and k of `{}` turn by different angles", it.body.name));
    }
    let (q, kv) = (it.whole("q")?, it.whole("c")?);
    let expected = [("r", q, shape.heads * shape.key_dim), ("k", kv, shape.latent)];
    if expected.into_iter().any(|(name, buffer, column)| it.slice(name) != Slice { buffer, column }) {
        return Err(pass_error!("the inputs of `{}` do not stand side by side", it.body.name));
    }
    let ([made], norm, frequencies) = (it.own("out"), it.norm("n"), frequencies.clone());
    let out = it.whole("out")?;
    Ok(LatentAttention { q, kv, norm, made, frequencies, shape, scale, query_scale, format, out }.into())
}

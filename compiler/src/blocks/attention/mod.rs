//! Attention over a K/V cache.

use super::Kind;
use crate::graph::RotaryFrequencies;
use crate::plan::{BufferId, FieldId, Work};
use crate::spec::types::{Compute, TensorClass};
use monomorph_abi::kv;

/// Norms of q and k heads, rotary, K/V write, attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// q, k and v side by side; where the result is gated, the gates stand between q and k.
    pub qkv: BufferId,
    /// Whether every element of the result is multiplied by the sigmoid of its gate.
    pub gated: bool,
    /// Per query head.
    pub q_norm: Option<FieldId>,
    /// Per key head.
    pub k_norm: Option<FieldId>,
    /// Angles.
    pub frequencies: RotaryFrequencies,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one.
    pub head_dim: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// One context vector a query head.
    pub out: BufferId,
}

impl Kind for Attention {
    const NAME: &'static str = "attention";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.qkv], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        self.q_norm.into_iter().chain(self.k_norm).collect()
    }

    fn work(&self, work: &mut Work) {
        let (tokens, context) = (work.given.tokens, work.given.context);
        let quant = &work.target.quant;
        let layout = kv::Layout::cuda(self.kv_heads, self.head_dim, quant.kv_block, quant.kv_format);
        // Each tile of queries reads the cache once; a step's tokens write it once.
        work.cost.kv_bytes = ((context + tokens) * layout.token_bytes()) as f64;
        let pairs = tokens * context + tokens * (tokens + 1) / 2;
        let products = (2 * pairs * self.heads * self.head_dim) as f64;
        // Decode attention reads the cache past a few queries, outside tensor cores; prefill's is a product.
        match (work.target.hardware.cuda(), quant.compute.classes.get(&TensorClass::Attention)) {
            (Some(_), Some(Compute::F16)) if tokens > 1 => work.cost.bf16_products = products,
            (Some(_), Some(Compute::F32 | Compute::Int8Block32)) => work.cost.f64_products = products,
            _ => work.cost.f32_products = products,
        }
    }
}

//! How much one step may carry: fixed at build time, because buffers and code are.

use crate::spec::types::{HardwareKind, Target};

/// What a step may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Most tokens over all sequences.
    pub tokens: usize,
    /// Most sequences; also the most rows whose logits are computed at once.
    pub sequences: usize,
}

/// Chooses the buckets for a target.
pub fn buckets(target: &Target) -> Buckets {
    match target.hardware.kind {
        // 512 tokens amortise unpacking a weight tile to under a hundredth of the products made with it, and
        // their activations still fit a core's share of the last-level cache.
        HardwareKind::Cpu(_) => Buckets { tokens: 512, sequences: 32 },
    }
}

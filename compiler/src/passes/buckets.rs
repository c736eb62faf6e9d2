//! How much one step may carry: fixed at build time, because buffers and code are.

use crate::plan::cuda::{DECODE_BUCKETS, MAX_SEQUENCES};
use crate::spec::types::{BatchInvariant, HardwareKind, Target};

/// What a step may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Most tokens over all sequences.
    pub tokens: usize,
    /// Most sequences; also the most rows whose logits are computed at once.
    pub sequences: usize,
    /// Sequences of the decode programs, ascending; empty where one program takes any number.
    pub decode: &'static [usize],
    /// Tokens of the prefill programs below `tokens`, ascending.
    pub prefill: &'static [usize],
}

/// Chooses the buckets for a target.
pub fn buckets(target: &Target) -> Buckets {
    match target.hardware.kind {
        // 512 tokens amortise unpacking a weight tile to under a hundredth of the products made with it, and
        // their activations still fit a core's share of the last-level cache.
        HardwareKind::Cpu(_) => Buckets { tokens: 512, sequences: 32, decode: &[], prefill: &[] },
        // 8,192 tokens keep every multiprocessor at work through the narrowest product; a model of shorter
        // context still takes that many of several prompts, but no more than its buffers are worth. Powers of
        // two waste at most half of a step's rows; a token and its drafts are a row each. Short prompts have
        // programs of their own: blocks cut for thousands of tokens leave most multiprocessors idle, and an
        // expert that has four of 128 tokens is not multiplied by 128. A batch-invariant target has one
        // program of each kind, whatever a step holds: another would sum in another order.
        HardwareKind::Cuda(_) => {
            let decode = target.batch_invariant.map_or(&DECODE_BUCKETS[..], BatchInvariant::decode);
            let fed = 1 + target.draft.map_or(0, |draft| draft.drafts);
            let fits = decode.iter().take_while(|sequences| *sequences * fed <= MAX_SEQUENCES);
            Buckets {
                tokens: target.model.context.clamp(128, 8192),
                sequences: fits.last().copied().unwrap_or(1),
                decode,
                prefill: if target.batch_invariant.is_some() { &[] } else { &[128, 1024] },
            }
        }
    }
}

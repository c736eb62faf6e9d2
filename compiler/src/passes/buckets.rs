//! Limits of one step: fixed at build time, because buffers and code are.

use crate::plan::Buckets;
use crate::plan::cuda::MAX_SEQUENCES;
use crate::spec::types::{BatchInvariant, DECODE_BUCKETS, HardwareKind, Target};

/// Chooses the buckets for a target.
pub fn buckets(target: &Target) -> Buckets {
    match target.hardware.kind {
        // 512 tokens amortise the unpacking of a weight tile to under a hundredth of the products made with
        // it, and their activations still fit a core's share of the last-level cache.
        HardwareKind::Cpu(_) => Buckets { tokens: 512, sequences: 32, decode: &[], prefill: &[] },
        // 8,192 tokens keep every multiprocessor busy through the narrowest product. A model with a shorter
        // context takes only as many as that, over several prompts: larger buffers are not worth their
        // memory. Powers of two waste at most half of a step's rows; a token and each of its drafts is a row.
        // Short prompts have programs of their own: tiles for thousands of tokens leave most multiprocessors
        // idle, and an expert with four of 128 tokens is not multiplied by 128. A batch-invariant target has
        // one program of each kind, whatever a step holds, because another program would sum in another
        // order.
        HardwareKind::Cuda(_) => {
            let decode = target.batch_invariant.map_or(&DECODE_BUCKETS[..], BatchInvariant::decode);
            let fed = 1 + target.drafts();
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

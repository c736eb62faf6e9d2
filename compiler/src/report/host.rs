//! The memory of the host that a server takes with the flags that it has by default.

use crate::plan::Plan;
use monomorph_abi::serve::{
    CONTEXT, DRIVER_BYTES, KV_TOKENS, MEMORY_FRACTION, PACKING_BYTES, PACKING_THREADS, PROCESS_BYTES,
};
use monomorph_abi::sliding::Sliding;
use serde::Serialize;

/// Bytes of host memory that a GPU's server packs weights in while it loads: of two buffers a thread. Scales
/// beside the codes are an eighth of them at most.
const PACKING: u64 = (PACKING_THREADS * 2 * (PACKING_BYTES + PACKING_BYTES / 8)) as u64;

/// Bytes of host memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostReport {
    /// What the server takes at most.
    pub taken: u64,
    /// What a container has to have, of which the server leaves a part free; whole MiB.
    pub container: u64,
}

/// Collects the report: all of it of a CPU's server, and of a GPU's what stands beside the device's memory,
/// for all its ranks.
pub fn report(plan: &Plan) -> HostReport {
    let taken = PROCESS_BYTES
        + match plan.cuda {
            Some(_) => PACKING + plan.target.ranks as u64 * DRIVER_BYTES,
            None => model(plan),
        };
    let container = (taken as f64 / MEMORY_FRACTION) as u64;
    HostReport { taken, container: container.div_ceil(1 << 20) << 20 }
}

/// Bytes of a model in host memory, with the keys and values that are asked for by default, and with a state
/// and a snapshot of it for each sequence.
fn model(plan: &Plan) -> u64 {
    let (memory, sequences) = (&plan.memory, plan.buckets.sequences);
    let (block_tokens, drafts) = (plan.target.quant.kv_block, plan.drafts());
    let context = plan.target.model.context.min(CONTEXT);
    let blocks = KV_TOKENS.max(context + drafts).div_ceil(block_tokens) as u64;
    let sliding = plan.sliding().map_or(0, |(window, bytes)| {
        let needs = Sliding { window, block_tokens }.needs(bytes, context, drafts, plan.buckets.tokens);
        needs.room(sequences, false).bytes(blocks)
    });
    memory.weights + memory.scratch + 2 * memory.state * sequences as u64 + memory.kv_block * blocks + sliding
}

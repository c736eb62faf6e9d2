//! Device memory that steps take besides weights, K/V and activations.

use super::{Bias, Header, SampledRow, Use, before_blocks};
use crate::cuda::ring::SlotRing;
use monomorph_abi::images::{ImageRow, PatchGrids, images_at};
use monomorph_abi::packed::ALIGNMENT;
use monomorph_abi::sliding::blocks_at;
use monomorph_abi::step::Ids;
use monomorph_model::{ModelSpec, SlidingSpec, VisionSpec};
use monomorph_sampling::{MAX_BIASES, TokenMask};

/// Bytes that the uploads of all steps in flight take, at most; `sliding` are the layers with a sliding
/// window, and `vision` is the tower.
pub(crate) fn device_bytes(
    spec: &ModelSpec,
    sliding: Option<SlidingSpec>,
    vision: Option<VisionSpec>,
    context: usize,
) -> u64 {
    let tables = Tables::of(spec, sliding, vision, context);
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGNMENT);
    let each = aligned(tables.passes + tables.header) + aligned(tables.tokens) + aligned(tables.history);
    SlotRing::of(spec).count() as u64 * each + aligned(tables.ids)
}

/// Bytes of each table of the step metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// Headers of draft passes, which the device writes, right before the step's own header.
    pub(crate) passes: u64,
    /// The header, followed by the block table and that of layers with a sliding window; or by the sides of
    /// images.
    pub(crate) header: u64,
    /// The block table alone.
    pub(crate) blocks: u64,
    /// Token rows, and behind them what is beside each of a stack with a tower.
    pub(crate) tokens: u64,
    /// Where the latter begin.
    pub(crate) images_at: u64,
    /// The history that penalties read, followed by biases and masks.
    pub(crate) history: u64,
    pub(crate) ids: u64,
    /// Drafted rows by pass and sequence, followed by the number of accepted drafts of each sequence, in host
    /// memory.
    pub(crate) drafted: u64,
    pub(crate) held: u64,
}

impl Tables {
    pub(crate) fn of(
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        vision: Option<VisionSpec>,
        context: usize,
    ) -> Tables {
        let images_at = images_at(spec.step_tokens) as u64;
        let images = vision.map_or(0, |_| (spec.step_tokens * size_of::<ImageRow>()) as u64);
        let (sequences, drafts, drafted) = (spec.step_sequences, spec.drafts(), spec.drafted());
        let blocks = 4 * (sequences * context.div_ceil(spec.block_tokens)) as u64;
        // As many entries as the step's sequences hold blocks, at most.
        let sliding_blocks = sliding.map_or(0, |it| 4 * it.needs(spec, context).room(sequences, true).most);
        let (uses, mask) = (context.min(spec.vocabulary), 4 * TokenMask::words_for(spec.vocabulary));
        let biases = MAX_BIASES.min(spec.vocabulary) * size_of::<Bias>();
        Tables {
            passes: (drafted * size_of::<Header>()) as u64,
            header: (blocks_at(sliding.is_some(), before_blocks(vision, drafted)) as u64
                + blocks
                + sliding_blocks)
                .max(vision.map_or(0, |_| (size_of::<Header>() + size_of::<PatchGrids>()) as u64)),
            blocks,
            tokens: images_at + images,
            images_at,
            history: (sequences * (1 + drafts)) as u64 * (uses * size_of::<Use>() + biases + mask) as u64,
            ids: (4 * Ids { sequences }.count(drafts > 0, drafted)) as u64,
            drafted: (drafted * sequences * size_of::<SampledRow>()) as u64,
            held: if drafted == 0 { 0 } else { (4 * sequences) as u64 },
        }
    }
}

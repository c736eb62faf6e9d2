//! What steps take on the device besides weights, K/V and activations.

use super::{Header, Limits, MAX_SEQUENCES, SampledRow, TokenRow, Use};
use crate::cuda::shape::ALIGNMENT;
use crate::cuda::steps::Sets;
use monomorph_model::ModelSpec;

/// Bytes of all that the steps in flight are uploaded to, at most.
pub(crate) fn device_bytes(spec: &ModelSpec, context: usize) -> u64 {
    let tables = Tables::of(spec, context);
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGNMENT);
    let each = aligned(tables.passes + tables.header) + aligned(tables.tokens) + aligned(tables.history);
    Sets::of(spec).count() as u64 * each + aligned(tables.ids)
}

/// Bytes of each table of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// Headers of the draft head's passes, which the device makes: right before its own.
    pub(crate) passes: u64,
    /// Header and block table.
    pub(crate) header: u64,
    pub(crate) tokens: u64,
    pub(crate) history: u64,
    pub(crate) ids: u64,
    /// What is drafted, by pass and sequence, and how many drafts of each sequence held: the host's memory.
    pub(crate) drafted: u64,
    pub(crate) held: u64,
}

impl Tables {
    pub(crate) fn of(spec: &ModelSpec, context: usize) -> Tables {
        let (sequences, drafts) = (spec.step_sequences, spec.drafts());
        let blocks = sequences * context.div_ceil(spec.block_tokens);
        let ids = Ids { slots: sequences, sequences, passes: drafts };
        Tables {
            passes: (drafts * size_of::<Header>()) as u64,
            header: (size_of::<Header>() + 4 * blocks) as u64,
            tokens: (spec.step_tokens * size_of::<TokenRow>()) as u64,
            history: (sequences * (1 + drafts) * context.min(spec.vocabulary) * size_of::<Use>()) as u64,
            ids: (4 * ids.count()) as u64,
            drafted: (drafts * sequences * size_of::<SampledRow>()) as u64,
            held: if drafts == 0 { 0 } else { (4 * sequences) as u64 },
        }
    }
}

/// Ids that the device remembers (templates/cuda/lib/accept.cuh): by slot those sampled last; where a build drafts also by row
/// those of a step that verifies, and by pass and sequence those drafted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    slots: usize,
    sequences: usize,
    passes: usize,
}

impl Ids {
    pub(crate) fn of(limits: &Limits) -> Ids {
        Ids { slots: limits.sequences, sequences: limits.sequences, passes: limits.drafts }
    }

    /// Where that of a row stands.
    pub(crate) fn row(self, row: usize) -> usize {
        self.slots + row
    }

    fn count(self) -> usize {
        if self.passes == 0 { self.slots } else { self.slots + MAX_SEQUENCES + self.passes * self.sequences }
    }
}

//! What steps take on the device besides weights, K/V and activations.

use super::{Bias, Header, Limits, MAX_SEQUENCES, SampledRow, TokenRow, Use};
use crate::cuda::steps::Sets;
use monomorph_abi::packed::ALIGNMENT;
use monomorph_model::ModelSpec;
use monomorph_sampling::{MAX_BIASES, TokenMask};

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
    /// Headers of the passes that draft, which the device makes: right before its own.
    pub(crate) passes: u64,
    /// Header and block table.
    pub(crate) header: u64,
    pub(crate) tokens: u64,
    /// What penalties look at, behind it the biases, and behind these the masks.
    pub(crate) history: u64,
    pub(crate) ids: u64,
    /// What is drafted, by pass and sequence, and how many drafts of each sequence held: the host's memory.
    pub(crate) drafted: u64,
    pub(crate) held: u64,
}

impl Tables {
    pub(crate) fn of(spec: &ModelSpec, context: usize) -> Tables {
        let (sequences, drafts, drafted) = (spec.step_sequences, spec.drafts(), spec.drafted());
        let blocks = sequences * context.div_ceil(spec.block_tokens);
        let (uses, mask) = (context.min(spec.vocabulary), 4 * TokenMask::words_for(spec.vocabulary));
        let biases = MAX_BIASES.min(spec.vocabulary) * size_of::<Bias>();
        let ids = Ids { slots: sequences, sequences, verifies: drafts > 0, passes: drafted };
        Tables {
            passes: (drafted * size_of::<Header>()) as u64,
            header: (size_of::<Header>() + 4 * blocks) as u64,
            tokens: (spec.step_tokens * size_of::<TokenRow>()) as u64,
            history: (sequences * (1 + drafts)) as u64 * (uses * size_of::<Use>() + biases + mask) as u64,
            ids: (4 * ids.count()) as u64,
            drafted: (drafted * sequences * size_of::<SampledRow>()) as u64,
            held: if drafted == 0 { 0 } else { (4 * sequences) as u64 },
        }
    }
}

/// Ids that the device remembers (templates/cuda/draft/accept.cuh): by slot those sampled last; where a build
/// verifies drafts also by row those of a step that does, and by pass and sequence those drafted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    slots: usize,
    sequences: usize,
    verifies: bool,
    passes: usize,
}

impl Ids {
    pub(crate) fn of(limits: &Limits) -> Ids {
        Ids {
            slots: limits.sequences,
            sequences: limits.sequences,
            verifies: limits.drafts > 0,
            passes: limits.drafted,
        }
    }

    /// Where that of a row stands.
    pub(crate) fn row(self, row: usize) -> usize {
        self.slots + row
    }

    fn count(self) -> usize {
        let rows = if self.verifies { MAX_SEQUENCES } else { 0 };
        self.slots + rows + self.passes * self.sequences
    }
}

//! What a build promises of batches.

use crate::plan::cuda::DECODE_BUCKETS;

/// That the size of a batch changes no bit of a row: a [`super::BuildOptions::batch_invariant`] that fits its
/// target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInvariant {
    /// Sequences of the one decode program, hence of a step: one of [`DECODE_BUCKETS`].
    pub sequences: usize,
}

impl BatchInvariant {
    /// The decode programs of such a build.
    pub fn decode(self) -> &'static [usize] {
        let at = DECODE_BUCKETS.iter().position(|sequences| *sequences == self.sequences);
        at.map_or(&[], |at| &DECODE_BUCKETS[at..=at])
    }

    /// A name of the choice, such as `invariant8`.
    pub(super) fn name(self) -> String {
        format!("invariant{}", self.sequences)
    }
}

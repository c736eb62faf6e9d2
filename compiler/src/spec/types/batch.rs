//! Batch invariance of a build.

use monomorph_abi::step::MAX_SEQUENCES;

/// Batch sizes of decode programs.
pub const DECODE_BUCKETS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, MAX_SEQUENCES];

/// Batch invariance: the batch size changes no bit of a row. It is a [`super::BuildOptions::batch_invariant`]
/// that fits its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInvariant {
    /// Sequences of the one decode program, and so of a step: one of [`DECODE_BUCKETS`].
    pub sequences: usize,
}

impl BatchInvariant {
    /// Batch sizes of the build's decode programs.
    pub fn decode(self) -> &'static [usize] {
        let at = DECODE_BUCKETS.iter().position(|sequences| *sequences == self.sequences);
        at.map_or(&[], |at| &DECODE_BUCKETS[at..=at])
    }

    /// Suffix of the build's name, such as `invariant8`.
    pub(super) fn name(self) -> String {
        format!("invariant{}", self.sequences)
    }
}

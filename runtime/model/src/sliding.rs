//! Layers with a sliding window, which keep only the blocks of a sequence that they still read.

use crate::spec::ModelSpec;
use monomorph_abi::sliding::{Sliding, SlidingNeeds};

/// The layers of a model that attend to the last positions of a sequence only. Their keys and values are in
/// blocks of their own; [`ModelSpec::block_bytes`] counts those of the other layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingSpec {
    /// Positions that a token attends to at most, its own among them; the most of all layers.
    pub window: usize,
    /// Bytes of one block of [`ModelSpec::block_tokens`] tokens over all these layers.
    pub block_bytes: usize,
}

impl SlidingSpec {
    /// Of a model whose bytes are spread over so many ranks, from what one of them has.
    pub const fn over(ranks: usize, one: Option<SlidingSpec>) -> Option<SlidingSpec> {
        match one {
            Some(it) => Some(SlidingSpec { block_bytes: ranks * it.block_bytes, ..it }),
            None => None,
        }
    }

    /// Which blocks of a sequence are read.
    pub const fn of(&self, spec: &ModelSpec) -> Sliding {
        Sliding { window: self.window, block_tokens: spec.block_tokens }
    }

    /// What sequences of up to `context` tokens take of their blocks.
    pub const fn needs(&self, spec: &ModelSpec, context: usize) -> SlidingNeeds {
        self.of(spec).needs(self.block_bytes as u64, context, spec.reach(), spec.step_tokens)
    }

    /// How many of their blocks there are beside `blocks` of the other layers, for so many `sequences` at a
    /// time of up to `context` tokens: see [`SlidingNeeds::room`].
    pub fn blocks(
        &self,
        spec: &ModelSpec,
        blocks: usize,
        sequences: usize,
        context: usize,
        offloads: bool,
    ) -> usize {
        let room = self.needs(spec, context).room(sequences, offloads);
        usize::try_from(room.blocks(blocks as u64)).unwrap_or(usize::MAX)
    }
}

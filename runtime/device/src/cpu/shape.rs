//! The figures of a batch and of its sequences, which kernels index by.

use std::ops::Range;

/// The bounds of a batch's steps, which [`Batch::fill`](super::batch::Batch::fill) enforces.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Most tokens of a step, over all sequences.
    pub tokens: usize,
    /// Most sequences of a step; slots lie below it.
    pub sequences: usize,
    /// Token ids lie below it.
    pub vocabulary: usize,
    /// Positions lie below it.
    pub context: usize,
    /// Tokens per K/V block.
    pub block_tokens: usize,
    /// Block ids lie below it.
    pub blocks: usize,
}

/// One sequence's part of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Index of its recurrent state; below the limit on sequences.
    pub(crate) slot: usize,
    /// Rows of its tokens.
    pub(crate) rows: Range<usize>,
    /// Position of its first token.
    pub(crate) position: usize,
    /// How many of its last tokens are drafts.
    pub(crate) drafts: usize,
    /// Its part of the block table.
    pub(crate) blocks: Range<usize>,
    /// Its part of the table of layers with a sliding window, and which of its blocks is the first there.
    pub(crate) sliding: Range<usize>,
    pub(crate) sliding_first: usize,
    /// Its part of the output rows.
    pub(super) outputs: Range<usize>,
}

/// Blocks of a sequence, in order: all of them, or those from one on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockTable<'a> {
    /// Which block of the sequence is the first of these.
    pub(crate) first: usize,
    pub(crate) blocks: &'a [u32],
}

impl BlockTable<'_> {
    /// Block `index` of the sequence.
    ///
    /// # Panics
    /// When it was given back, or is not there yet.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> u32 {
        self.blocks[index - self.first]
    }
}

/// Keys between two merges of attention.
pub(super) const SEGMENT: usize = 128;

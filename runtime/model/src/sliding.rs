//! Layers with a sliding window, which keep only the blocks of a sequence that they still read.

use crate::spec::ModelSpec;
use monomorph_abi::sliding::Sliding;

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
    /// Which blocks of a sequence are read.
    pub const fn of(&self, spec: &ModelSpec) -> Sliding {
        Sliding { window: self.window, block_tokens: spec.block_tokens }
    }

    /// What sequences of up to `context` tokens take of their blocks.
    pub const fn needs(&self, spec: &ModelSpec, context: usize) -> SlidingNeeds {
        let it = self.of(spec);
        SlidingNeeds {
            block: self.block_bytes as u64,
            sequence: it.most(context, spec.reach()) as u64,
            step: it.fed(spec.step_tokens) as u64,
        }
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

/// What sequences take of the blocks of layers with a sliding window; nothing of a model without such layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingNeeds {
    /// Bytes of a block.
    pub block: u64,
    /// Most blocks that a sequence holds between two steps.
    pub sequence: u64,
    /// Most blocks that a step adds to those of its sequences.
    pub step: u64,
}

impl SlidingNeeds {
    /// How many there are for so many `sequences` at a time: so many that these never want for any, however
    /// few blocks of the other layers they have.
    ///
    /// None of them is on disk. So where sequences may have more blocks than the device, because it
    /// `offloads` those of the other layers, these are not bounded by them.
    pub const fn room(&self, sequences: usize, offloads: bool) -> SlidingRoom {
        let most = self.sequence.saturating_mul(sequences as u64).saturating_add(self.step);
        SlidingRoom { block: self.block, most, all: offloads }
    }
}

/// Memory of blocks of layers with a sliding window: as many as there are blocks of the other layers, but no
/// more than sequences can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingRoom {
    /// Bytes of one; 0 where there are no such layers.
    pub block: u64,
    /// Most of them.
    pub most: u64,
    /// Whether there are so many, however few blocks of the other layers.
    pub all: bool,
}

impl SlidingRoom {
    /// How many there are beside so many blocks of the other layers.
    pub const fn blocks(&self, blocks: u64) -> u64 {
        if self.all || self.most < blocks { self.most } else { blocks }
    }

    /// Their bytes.
    pub const fn bytes(&self, blocks: u64) -> u64 {
        self.block.saturating_mul(self.blocks(blocks))
    }

    /// How many blocks of `block` bytes of the other layers fit into so many bytes with theirs.
    pub fn beside(&self, block: u64, bytes: u64) -> u64 {
        let each = bytes / (block + self.block).max(1);
        if !self.all && each < self.most {
            return each;
        }
        // As many as there can be of these, whatever there are of the others.
        bytes.saturating_sub(self.bytes(self.most)) / block.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small case, against a search.
    #[test]
    fn blocks_of_both_kinds_fit_and_one_more_would_not() {
        for (bytes, block, most) in
            (0..200).flat_map(|bytes| [(bytes, 0, 0), (bytes, 3, 5), (bytes, 1, 40), (bytes, 9, 1)])
        {
            for all in [false, true] {
                let sliding = SlidingRoom { block, most, all };
                let fits = |blocks: u64| 4 * blocks + sliding.bytes(blocks) <= bytes;
                let expected = (0..100).rev().find(|blocks| fits(*blocks)).unwrap_or(0);
                assert_eq!(sliding.beside(4, bytes), expected, "{bytes} bytes, {sliding:?}");
            }
        }
    }

    #[test]
    fn there_are_no_more_than_sequences_hold_and_where_others_are_on_disk_no_fewer() {
        let needs = SlidingNeeds { block: 10, sequence: 6, step: 4 };
        let blocks = |offloads, blocks| needs.room(3, offloads).blocks(blocks);
        assert_eq!([5, 22, 100].map(|there| blocks(false, there)), [5, 22, 22]);
        assert_eq!([5, 22, 100].map(|there| blocks(true, there)), [22; 3]);
        assert_eq!(needs.room(3, false).bytes(5), 50);
        assert_eq!(SlidingNeeds::default().room(3, true).bytes(100), 0);
    }
}

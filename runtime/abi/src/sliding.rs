//! Layers with a sliding window: which blocks of a sequence they still read, and how many of them there are.
//!
//! A token at position `p` attends to positions `p + 1 - window ..= p`. Such layers have blocks of their own,
//! beside those of layers that read all positions: a block is [`kv::Layout`](crate::kv::Layout) in each of
//! them, one after the other. Both kinds of blocks are of the same number of tokens, so that block `i` of
//! a sequence holds the same positions in each. A sequence's table of the one kind has all its blocks, that
//! of the other begins with the first that is still read; what lies before it has been given back.
//!
//! On a CUDA device a step of such a model is uploaded as its header, [`SlidingStarts`], the block table, the
//! entries of layers with a window. `templates/cuda/attention/sliding.cuh` is printed from here ([`header`]).

use crate::images::BeforeBlocks;
use crate::step::{Header, MAX_SEQUENCES};
use crate::wire::{header_of, wire};

wire! {
    /// Where the table of a sequence begins that layers with a sliding window read. Steps of models with such
    /// layers have it right behind their header, which is that of all models: other kernels do not know of
    /// it.
    SlidingStarts as "SlidingStarts" {
        /// Entry i of sequence s at `blocks()[start[s] + i]`. What lies before the first block that its rows
        /// attend to has no entry, so a start may be negative.
        start: [i32; MAX_SEQUENCES],
    }
}

impl SlidingStarts {
    /// Of no sequences.
    pub const NONE: SlidingStarts = SlidingStarts { start: [0; MAX_SEQUENCES] };
}

/// Bytes of what a step's block table stands behind: what steps with images have `before` it is the last of
/// it.
pub const fn blocks_at(slides: bool, before: BeforeBlocks) -> usize {
    let starts = if slides { size_of::<SlidingStarts>() } else { 0 };
    size_of::<Header>() + starts + before.bytes()
}

/// The text of `templates/cuda/attention/sliding.cuh`.
pub fn header() -> String {
    header_of("sliding.rs", "\"core/step.cuh\"", "", DECLARATIONS)
}

/// A sliding window over blocks. Of several windows in a model it is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sliding {
    /// Positions that a token attends to at most, its own among them; at least 1.
    pub window: usize,
    /// Tokens of a block; at least 1.
    pub block_tokens: usize,
}

impl Sliding {
    /// The first block that a token at this position attends to. All tokens after it attend to none before.
    pub const fn first(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window) / self.block_tokens
    }

    /// Of a table of `held` blocks that begins with block `first`, how many lie before all that a token at
    /// `position` attends to.
    pub const fn passed(&self, first: usize, held: usize, position: usize) -> usize {
        let passed = self.first(position).saturating_sub(first);
        if passed < held { passed } else { held }
    }

    /// Of a prefix of so many whole blocks, how many at its end hold what the token after it attends to.
    pub const fn behind(&self, blocks: usize) -> usize {
        blocks - self.first(blocks * self.block_tokens)
    }

    /// Most blocks that a sequence of up to `tokens` tokens holds between two steps, and in a step that feeds
    /// it no more than a block. Steps write `reach` positions behind what they feed.
    ///
    /// What it attends to and what is written are `window + reach` positions; both ends lie within blocks.
    pub const fn most(&self, tokens: usize, reach: usize) -> usize {
        let all = (tokens + reach).div_ceil(self.block_tokens);
        let slid = (self.window + reach).div_ceil(self.block_tokens) + 2;
        if slid < all { slid } else { all }
    }

    /// Blocks that the sequences of a step of so many tokens hold beyond [`Self::most`], all together.
    pub const fn fed(&self, step_tokens: usize) -> usize {
        step_tokens.div_ceil(self.block_tokens)
    }

    /// What sequences of up to `context` tokens take of blocks of so many bytes.
    pub const fn needs(
        &self,
        block_bytes: u64,
        context: usize,
        reach: usize,
        step_tokens: usize,
    ) -> SlidingNeeds {
        SlidingNeeds {
            block: block_bytes,
            sequence: self.most(context, reach) as u64,
            step: self.fed(step_tokens) as u64,
        }
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

    #[test]
    fn starts_stand_behind_the_header_and_before_the_blocks() {
        let [nothing, shifts] = [BeforeBlocks::Nothing, BeforeBlocks::Shifts];
        assert_eq!(blocks_at(false, nothing), size_of::<Header>());
        assert_eq!(blocks_at(true, nothing), size_of::<Header>() + 4 * MAX_SEQUENCES);
        assert_eq!(blocks_at(true, shifts), blocks_at(true, nothing) + 4 * MAX_SEQUENCES);
        assert!(size_of::<Header>().is_multiple_of(align_of::<SlidingStarts>()));
        let text = header();
        assert!(text.contains("    int start[MAX_SEQUENCES];\n"), "{text}");
        assert!(text.contains("static_assert(sizeof(SlidingStarts) == 512, "), "{text}");
    }

    /// The blocks that some position of `attended` lies in, by asking each.
    fn touched(it: &Sliding, attended: std::ops::Range<usize>) -> Vec<usize> {
        let all: std::collections::BTreeSet<usize> =
            attended.map(|position| position / it.block_tokens).collect();
        all.into_iter().collect()
    }

    fn all() -> impl Iterator<Item = Sliding> {
        (1..30).flat_map(|window| [1, 3, 4, 16].map(|block_tokens| Sliding { window, block_tokens }))
    }

    #[test]
    fn the_first_block_is_the_first_that_some_position_of_the_window_lies_in() {
        for it in all() {
            for position in 0..100 {
                let attended = (position + 1usize).saturating_sub(it.window)..position + 1;
                assert_eq!(touched(&it, attended)[0], it.first(position), "{it:?} {position}");
            }
        }
    }

    #[test]
    fn the_blocks_that_a_token_has_passed_are_those_before_its_first() {
        for it in all() {
            for (first, held, position) in
                (0..5).flat_map(|first| (0..5).flat_map(move |held| (0..60).map(move |at| (first, held, at))))
            {
                let before = (first..first + held).filter(|block| *block < it.first(position)).count();
                assert_eq!(it.passed(first, held, position), before, "{it:?} {first} {held} {position}");
            }
        }
    }

    #[test]
    fn the_blocks_behind_a_prefix_are_those_that_the_token_after_it_attends_to() {
        for it in all() {
            for blocks in 0..40 {
                let next = blocks * it.block_tokens;
                let attended = touched(&it, (next + 1).saturating_sub(it.window)..next);
                assert_eq!(it.behind(blocks), attended.len(), "{it:?} {blocks}");
            }
        }
    }

    #[test]
    fn sequences_of_a_step_never_hold_more_than_is_said() {
        for it in all() {
            for reach in [0, 1, 5] {
                for (done, fed) in (0..60usize).flat_map(|done| (1..40).map(move |fed| (done, fed))) {
                    let held = (done + fed + reach).div_ceil(it.block_tokens) - it.first(done);
                    let most = it.most(done + fed, reach);
                    assert!(held <= most + it.fed(fed), "{it:?}: {done} and {fed}, reach {reach}");
                    assert!(fed > it.block_tokens || held <= most, "{it:?}: {done} and {fed}, reach {reach}");
                    // Several at once: each rounds up by a block at most, which is its own.
                    assert!(held - most.min(held) <= fed / it.block_tokens, "{it:?}: {done} and {fed}");
                }
            }
        }
    }

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

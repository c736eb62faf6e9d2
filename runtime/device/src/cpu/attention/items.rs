//! How attention is cut into pieces of work.

use super::super::batch::{Batch, Sequence};
use super::{ITEMS_PER_LANE, SEGMENT};
use std::ops::Range;

/// A run of tokens of one sequence and the query heads of one K/V head.
pub(super) struct Item<'a> {
    /// Whose.
    pub(super) sequence: &'a Sequence,
    /// Rows of the batch.
    pub(super) tokens: Range<usize>,
    /// K/V head.
    pub(super) head: usize,
    /// Segments that the last token sees.
    pub(super) segments: usize,
    /// Where contexts are split: the segment to attend to.
    pub(super) segment: usize,
    /// Where contexts are split: the first of the item's partial states, which stand segment by segment.
    pub(super) partial: usize,
}

/// All items of a batch. Every lane makes the same.
pub(super) struct Items<'a> {
    batch: &'a Batch,
    kv_heads: usize,
    /// Tokens of an item.
    tokens: usize,
    /// Query rows of a token.
    group: usize,
    /// Items, contexts unsplit.
    whole: usize,
    split: bool,
}

impl<'a> Items<'a> {
    /// `room` is how many partial states there is room for.
    pub(super) fn new(
        lanes: usize,
        batch: &'a Batch,
        kv_heads: usize,
        group: usize,
        tokens: usize,
        room: usize,
    ) -> Items<'a> {
        let whole = batch.sequences().iter().map(|s| kv_heads * s.rows.len().div_ceil(tokens)).sum();
        let mut items = Items { batch, kv_heads, tokens, group, whole, split: false };
        // Few items leave lanes idle; so few are quickly counted.
        if lanes > 1 && whole < lanes * ITEMS_PER_LANE {
            let mut partials = 0;
            let mut longest = 0;
            for item in items.whole_items() {
                partials += item.segments * item.tokens.len() * group;
                longest = longest.max(item.segments);
            }
            items.split = longest > 1 && partials <= room;
        }
        items
    }

    /// Whether each segment is an item of its own, to be merged afterwards.
    pub(super) fn split(&self) -> bool {
        self.split
    }

    /// Item `index`; `None` beyond the last.
    pub(super) fn get(&self, mut index: usize) -> Option<Item<'a>> {
        if self.split {
            for mut item in self.whole_items() {
                if index < item.segments {
                    item.segment = index;
                    return Some(item);
                }
                index -= item.segments;
            }
            return None;
        }
        // The last tokens of a sequence see most: they come first, so that the lanes finish together.
        let mut index = self.whole.checked_sub(index + 1)?;
        for sequence in self.batch.sequences() {
            let count = self.kv_heads * sequence.rows.len().div_ceil(self.tokens);
            if index < count {
                return Some(self.item(sequence, index));
            }
            index -= count;
        }
        None
    }

    /// The items with their contexts whole, with their places among the partial states.
    pub(super) fn whole_items<'s>(&'s self) -> impl Iterator<Item = Item<'a>> + 's {
        let mut partial = 0;
        self.batch
            .sequences()
            .iter()
            .flat_map(move |sequence| {
                let count = self.kv_heads * sequence.rows.len().div_ceil(self.tokens);
                (0..count).map(move |index| self.item(sequence, index))
            })
            .map(move |mut item| {
                item.partial = partial;
                partial += item.segments * item.tokens.len() * self.group;
                item
            })
    }

    /// Item `index` of a sequence.
    fn item(&self, sequence: &'a Sequence, index: usize) -> Item<'a> {
        let start = sequence.rows.start + index / self.kv_heads * self.tokens;
        let end = (start + self.tokens).min(sequence.rows.end);
        let last = sequence.position + (end - 1 - sequence.rows.start);
        Item {
            sequence,
            tokens: start..end,
            head: index % self.kv_heads,
            segments: last / SEGMENT + 1,
            segment: 0,
            partial: 0,
        }
    }
}

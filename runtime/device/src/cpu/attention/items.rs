//! How attention is cut into pieces of work.

use super::super::batch::{Batch, Sequence, Stretch};
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
    /// Segments to attend to, of those that the last token sees; none where that sees what comes before them
    /// only.
    pub(super) segments: Range<usize>,
    /// Segments that the last token sees.
    pub(super) seen: usize,
    /// Where contexts are split: the segment to attend to.
    pub(super) segment: usize,
    /// Where contexts are split: the first of the item's partial states, which stand segment by segment.
    pub(super) partial: usize,
}

/// All items of some stretches of a batch. Every lane makes the same.
pub(super) struct Items<'a> {
    batch: &'a Batch,
    stretches: &'a [Stretch],
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
        stretches: &'a [Stretch],
        kv_heads: usize,
        group: usize,
        tokens: usize,
        room: usize,
    ) -> Items<'a> {
        let mut items = Items { batch, stretches, kv_heads, tokens, group, whole: 0, split: false };
        items.whole = stretches.iter().map(|stretch| items.count(stretch)).sum();
        let whole = items.whole;
        // Few items leave lanes idle; so few are quickly counted.
        if lanes > 1 && whole < lanes * ITEMS_PER_LANE {
            let mut partials = 0;
            let mut longest = 0;
            for item in items.whole_items() {
                partials += item.segments.len() * item.tokens.len() * group;
                longest = longest.max(item.segments.len());
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
                if index < item.segments.len() {
                    item.segment = item.segments.start + index;
                    return Some(item);
                }
                index -= item.segments.len();
            }
            return None;
        }
        // The last tokens of a sequence see most: they come first, so that the lanes finish together.
        let mut index = self.whole.checked_sub(index + 1)?;
        for stretch in self.stretches {
            let count = self.count(stretch);
            if index < count {
                return Some(self.item(stretch, index));
            }
            index -= count;
        }
        None
    }

    /// Items of a stretch, contexts unsplit.
    fn count(&self, stretch: &Stretch) -> usize {
        self.kv_heads * self.batch.sequences()[stretch.sequence].rows.len().div_ceil(self.tokens)
    }

    /// The items with their contexts whole, with their places among the partial states.
    pub(super) fn whole_items<'s>(&'s self) -> impl Iterator<Item = Item<'a>> + 's {
        let mut partial = 0;
        self.stretches
            .iter()
            .flat_map(move |stretch| (0..self.count(stretch)).map(move |index| self.item(stretch, index)))
            .map(move |mut item| {
                item.partial = partial;
                partial += item.segments.len() * item.tokens.len() * self.group;
                item
            })
    }

    /// Item `index` of a stretch.
    fn item(&self, stretch: &Stretch, index: usize) -> Item<'a> {
        let sequence = &self.batch.sequences()[stretch.sequence];
        let start = sequence.rows.start + index / self.kv_heads * self.tokens;
        let end = (start + self.tokens).min(sequence.rows.end);
        let last = sequence.position + (end - 1 - sequence.rows.start);
        let (seen, segments) = (last / SEGMENT + 1, stretch.segments.clone());
        Item {
            sequence,
            tokens: start..end,
            head: index % self.kv_heads,
            segments: segments.start.min(seen)..segments.end.min(seen),
            seen,
            segment: 0,
            partial: 0,
        }
    }
}

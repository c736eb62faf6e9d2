//! Splits attention into work items.

use super::super::batch::Batch;
use super::super::shape::Sequence;
use super::super::windows::Stretch;
use super::{ITEMS_PER_LANE, SEGMENT};
use std::ops::Range;

/// A run of tokens of one sequence and the query heads of one K/V head.
pub(super) struct Item<'a> {
    /// The sequence of the tokens.
    pub(super) sequence: &'a Sequence,
    /// Rows of the batch.
    pub(super) tokens: Range<usize>,
    /// K/V head.
    pub(super) head: usize,
    /// Segments to attend to, out of those that the last token sees and that lie in the window of some token;
    /// empty if there are only others.
    pub(super) segments: Range<usize>,
    /// The first segment that lies in the window of some token: that of the first.
    pub(super) first: usize,
    /// Number of segments that the last token sees, those before windows included.
    pub(super) seen: usize,
    /// The segment to attend to, if contexts are split.
    pub(super) segment: usize,
    /// The first of the item's partial states, which are stored by segment, if contexts are split.
    pub(super) partial: usize,
}

/// All items of some stretches of a batch. Every lane computes the same list.
pub(super) struct Items<'a> {
    batch: &'a Batch,
    /// By row: the last position that it attends to.
    ends: &'a [u32],
    stretches: &'a [Stretch],
    kv_heads: usize,
    /// Tokens of an item.
    tokens: usize,
    /// Query rows of a token.
    group: usize,
    /// Positions that a token attends to at most.
    window: usize,
    /// Number of items with unsplit contexts.
    whole: usize,
    split: bool,
}

impl<'a> Items<'a> {
    /// `room` is the number of partial states there is memory for.
    #[expect(clippy::too_many_arguments, reason = "what items are cut by")]
    pub(super) fn new(
        lanes: usize,
        batch: &'a Batch,
        ends: &'a [u32],
        stretches: &'a [Stretch],
        kv_heads: usize,
        group: usize,
        tokens: usize,
        window: usize,
        room: usize,
    ) -> Items<'a> {
        let mut items =
            Items { batch, ends, stretches, kv_heads, tokens, group, window, whole: 0, split: false };
        items.whole = stretches.iter().map(|stretch| items.count(stretch)).sum();
        let whole = items.whole;
        // Few items would leave lanes idle, and few are quickly counted.
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

    /// Whether each segment is an item of its own, to be merged later.
    pub(super) fn split(&self) -> bool {
        self.split
    }

    /// Item `index`; `None` past the last.
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
        // The last tokens of a sequence see the most keys. They come first, so that all lanes finish at about
        // the same time.
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

    /// Number of a stretch's items with unsplit contexts.
    fn count(&self, stretch: &Stretch) -> usize {
        self.kv_heads * self.batch.sequences()[stretch.sequence].rows.len().div_ceil(self.tokens)
    }

    /// The items with unsplit contexts, each with the index of its first partial state.
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
        let position = |row: usize| sequence.position + (row - sequence.rows.start);
        // No row attends further than a later one.
        let seen = self.ends[end - 1] as usize / SEGMENT + 1;
        let first = (position(start) + 1).saturating_sub(self.window) / SEGMENT;
        let last = stretch.segments.end.min(seen);
        Item {
            sequence,
            tokens: start..end,
            head: index % self.kv_heads,
            segments: stretch.segments.start.max(first).min(last)..last,
            first,
            seen,
            segment: 0,
            partial: 0,
        }
    }
}

//! Second half of attention: the work items, segment by segment.

use super::super::batch::Batch;
use super::super::epilogue::sigmoid_times;
use super::super::kept::{KvCodes, KvKept, Unit};
use super::super::kv::{PagedCache, StagedWindow, rotation};
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, QUERY_ROWS, TILE, at, at_mut};
use super::super::team::Lane;
use super::super::windows::Stretch;
use super::items::{Item, Items};
use super::segment::{Cached, Gathered, KeyValues, Tile, merge};
use super::{GATHER_ROWS, LaneScratch, SEGMENT, SegmentScratch};
use monomorph_formats::cached::GROUP;

/// The arguments of [`super::attention`] that the second half needs. Values have `VALUE` elements; with
/// `LATENT`, which is as many, they are the leading ones of their keys.
pub(in super::super) struct Work<
    'a,
    E: KvKept,
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const VALUE: usize,
    const BLOCK: usize,
    const LATENT: usize,
    const QKV: usize,
    const OUT: usize,
> {
    pub(in super::super) batch: &'a Batch,
    pub(in super::super) layer: usize,
    pub(in super::super) qkv: &'a Rows<QKV>,
    pub(in super::super) scale: f32,
    /// By row of the batch: the last position that it attends to, its own or a later one.
    pub(in super::super) ends: &'a [u32],
    /// Positions that a row attends to at most, its own among them.
    pub(in super::super) window: usize,
    pub(in super::super) cache: &'a PagedCache<E, KV_HEADS, HEAD_DIM, BLOCK, LATENT>,
    pub(in super::super) scratch: &'a SegmentScratch<HEADS, KV_HEADS, HEAD_DIM, VALUE>,
    pub(in super::super) out: &'a Rows<OUT>,
}

impl<
    E: KvKept,
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const VALUE: usize,
    const BLOCK: usize,
    const LATENT: usize,
    const QKV: usize,
    const OUT: usize,
> Work<'_, E, HEADS, KV_HEADS, HEAD_DIM, VALUE, BLOCK, LATENT, QKV, OUT>
{
    const GROUP: usize = SegmentScratch::<HEADS, KV_HEADS, HEAD_DIM, VALUE>::GROUP;
    const STATE: usize = SegmentScratch::<HEADS, KV_HEADS, HEAD_DIM, VALUE>::STATE;
    const WIDTH: usize = SegmentScratch::<HEADS, KV_HEADS, HEAD_DIM, VALUE>::WIDTH;
    const TOKENS: usize = SegmentScratch::<HEADS, KV_HEADS, HEAD_DIM, VALUE>::TOKENS;
    /// Whether values are stored beside keys.
    const OWN: bool = LATENT == 0;
    /// Trailing elements of a key that are kept as bf16, beside codes.
    const TAIL: usize = PagedCache::<E, KV_HEADS, HEAD_DIM, BLOCK, LATENT>::TAIL;
    /// Whether the query heads are followed by a gate for each.
    const GATED: bool = QKV > (HEADS + 2 * KV_HEADS) * HEAD_DIM;

    /// Attends with every row of the batch; ends with a barrier.
    pub(in super::super) fn run(&self, lane: &Lane) {
        if let (Some((stream, part)), windows @ [_, ..]) =
            (self.cache.stream_of(self.layer), self.batch.windows())
        {
            for (index, window) in windows.iter().enumerate() {
                let staged = stream.wait(lane, part, index);
                let staged = StagedWindow { staged, first: window.offloaded.start };
                self.stretches(lane, self.batch.stretches(Some(window)), &staged, true);
                stream.release(lane);
            }
        } else {
            self.stretches(lane, self.batch.stretches(None), &StagedWindow::NONE, false);
        }
    }

    /// Attends to some stretches; ends with a barrier. If further stretches follow, the rows' states are
    /// `carried` to the next.
    fn stretches(&self, lane: &Lane, stretches: &[Stretch], window: &StagedWindow, carried: bool) {
        let room = self.scratch.partials.len() / Self::STATE;
        let items = Items::new(
            lane.lanes(),
            self.batch,
            self.ends,
            stretches,
            KV_HEADS,
            Self::GROUP,
            Self::TOKENS,
            self.window,
            room,
        );
        let scratch = &self.scratch.lanes[lane.index()];
        while let Some(item) = items.get(lane.claim()) {
            let rows = item.tokens.len() * Self::GROUP;
            if items.split() {
                let start = (item.partial + (item.segment - item.segments.start) * rows) * Self::STATE;
                // SAFETY: each item has its own partial states.
                let states = unsafe { self.scratch.partials.slice_mut(start, rows * Self::STATE) };
                self.attend(&item, item.segment, scratch, states, false, window);
            } else {
                let states = if carried {
                    // SAFETY: each item has its own states, last written before a barrier.
                    unsafe { self.carried(&item, 0, rows) }
                } else {
                    // SAFETY: only this lane uses its scratch, and `attend` uses other parts of it.
                    unsafe { scratch.states.slice_mut(0, rows * Self::STATE) }
                };
                for segment in item.segments.clone() {
                    self.attend(&item, segment, scratch, states, segment > item.first, window);
                }
                if Self::is_last(&item) {
                    for (row, state) in states.chunks_exact(Self::STATE).enumerate() {
                        self.finish(&item, row, state);
                    }
                }
            }
        }
        lane.barrier();
        if items.split() {
            self.merge_partials(lane, &items, carried);
            lane.barrier();
        }
    }

    /// Whether an item attends to the last segment that it sees.
    fn is_last(item: &Item) -> bool {
        !item.segments.is_empty() && item.segments.end == item.seen
    }

    /// The states of `rows` rows of an item from `row` on that are kept between windows.
    ///
    /// # Safety
    /// No other reference to them is used while the result lives.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    unsafe fn carried(&self, item: &Item, row: usize, rows: usize) -> &mut [f32] {
        assert!(item.tokens.end <= self.scratch.tokens, "more tokens than states can wait for");
        let first = (item.head * self.scratch.tokens + item.tokens.start) * Self::GROUP + row;
        // SAFETY: the caller's promise.
        unsafe { self.scratch.carried.slice_mut(first * Self::STATE, rows * Self::STATE) }
    }

    /// Merges the segments of split contexts.
    fn merge_partials(&self, lane: &Lane, items: &Items, carried: bool) {
        let rows_of = |item: &Item| item.tokens.len() * Self::GROUP;
        let mine = lane.share(items.whole_items().map(|item| rows_of(&item)).sum());
        let mut before = 0;
        for item in items.whole_items() {
            let rows = rows_of(&item);
            for row in mine.start.saturating_sub(before).min(rows)..mine.end.saturating_sub(before).min(rows)
            {
                let total = if carried {
                    // SAFETY: each row belongs to one lane in this phase, and its state was written before a
                    // barrier.
                    unsafe { self.carried(&item, row, 1) }
                } else {
                    // SAFETY: only this lane uses its scratch.
                    unsafe { self.scratch.lanes[lane.index()].states.slice_mut(0, Self::STATE) }
                };
                let seen = self.end(&item, row) / SEGMENT + 1;
                for segment in item.segments.start..item.segments.end.min(seen) {
                    let at = segment - item.segments.start;
                    let start = (item.partial + at * rows + row) * Self::STATE;
                    // SAFETY: the states were written before a barrier, and are not written in this phase.
                    let state = unsafe { self.scratch.partials.slice(start, Self::STATE) };
                    if segment == item.first {
                        total.copy_from_slice(state);
                    } else {
                        merge(total, state);
                    }
                }
                if Self::is_last(&item) {
                    self.finish(&item, row, total);
                }
            }
            before += rows;
        }
    }

    /// The position of a row of an item.
    #[inline(always)]
    fn position(&self, item: &Item, row: usize) -> usize {
        self.batch.positions()[item.tokens.start + row / Self::GROUP] as usize
    }

    /// The last position that a row of an item attends to.
    #[inline(always)]
    fn end(&self, item: &Item, row: usize) -> usize {
        self.ends[item.tokens.start + row / Self::GROUP] as usize
    }

    /// Divides a row's weighted sum of codes by the sum of its weights, multiplies it by the values' static
    /// scale, rotates it back, and applies the gate if there is one.
    fn finish(&self, item: &Item, row: usize, state: &[f32]) {
        let head = item.head * Self::GROUP + row % Self::GROUP;
        let token = item.tokens.start + row / Self::GROUP;
        // SAFETY: each head of a token belongs to one item.
        let out = unsafe { self.out.part_mut(token, head * VALUE, VALUE) };
        let by = self.cache.value_scale(self.layer, item.head);
        for (out, sum) in out.iter_mut().zip(&state[TILE..]) {
            *out = sum / state[1] * by;
        }
        // Gates multiply element by element, so they come after.
        if let Some(stored) = rotation::<VALUE>(E::Values::FORMAT) {
            stored.undo(out);
        }
        if Self::GATED {
            // SAFETY: no lane writes gates in this phase.
            let gates = unsafe { self.qkv.part(token, (HEADS + head) * HEAD_DIM, HEAD_DIM) };
            for (out, gates) in out.chunks_mut(LANES).zip(gates.chunks(LANES)) {
                let (mut x, mut by) = ([0.0; LANES], [0.0; LANES]);
                x[..out.len()].copy_from_slice(out);
                by[..gates.len()].copy_from_slice(gates);
                let gated = sigmoid_times(F32s::load(&x), F32s::load(&by)).to_array();
                out.copy_from_slice(&gated[..out.len()]);
            }
        }
    }

    /// Attends to a segment: each row's state is merged into `states` or replaces them.
    fn attend(
        &self,
        item: &Item,
        segment: usize,
        scratch: &LaneScratch,
        states: &mut [f32],
        merging: bool,
        window: &StagedWindow,
    ) {
        let rows = item.tokens.len() * Self::GROUP;
        let start = segment * SEGMENT;
        let seen = (self.end(item, rows - 1) + 1 - start).min(SEGMENT);
        let table = self.cache.table(self.batch, item.sequence);
        // In whole groups of the segment: those before were given back.
        let there = (table.first * BLOCK).saturating_sub(start) / TILE;
        // Groups past the last visible one are replaced by that one, and those that are there no more by the
        // first that is: they are read in whole vectors, and their scores are discarded.
        let place = |group: usize| {
            let position = start + group.clamp(there, (seen - 1) / TILE) * TILE;
            (table.at(position / BLOCK), position % BLOCK)
        };
        let keys = std::array::from_fn(|group| {
            let (block, slot) = place(group);
            // SAFETY: keys were written before a barrier, and are not written in this phase.
            unsafe { self.cache.keys(self.layer, block, item.head, window) }.keys_from(slot)
        });
        let values = std::array::from_fn(|group| {
            let (block, slot) = place(group);
            match Self::OWN {
                // SAFETY: as for the keys.
                true => unsafe { self.cache.values(self.layer, block, item.head, window) }
                    .values_from(slot, Self::WIDTH),
                false => Unit::NONE,
            }
        });
        let source = Cached::<E, BLOCK> { keys, values, width: Self::WIDTH };
        // SAFETY: only this lane uses its scratch, and each part of it has one use.
        let scores = unsafe { scratch.scores.slice_mut(0, QUERY_ROWS * SEGMENT) };
        let from = Self::TOKENS * Self::GROUP * Self::STATE;
        // SAFETY: as above.
        let current = unsafe { scratch.states.slice_mut(from, QUERY_ROWS * Self::STATE) };
        let mut rows = Rowwise { item, start, states, scores, current, merging };
        // What is stored by dimension is summed by token.
        if !Self::OWN || rows.states.len() / Self::STATE >= GATHER_ROWS {
            let scale = self.cache.key_scale(self.layer, item.head);
            self.attend_rows(&mut rows, &self.gather(&source, seen, scale, scratch));
        } else {
            self.attend_rows(&mut rows, &source);
        }
    }

    /// Widens the first `seen` keys and values of a segment. Where keys have a tail their codes are
    /// multiplied by `scale`, which does not multiply tails.
    fn gather<'s>(
        &self,
        source: &Cached<E, BLOCK>,
        seen: usize,
        scale: f32,
        scratch: &'s LaneScratch,
    ) -> Gathered<'s, HEAD_DIM, VALUE> {
        // SAFETY: only this lane uses its scratch, and each part of it has one use.
        let keys = unsafe { scratch.keys.slice_mut(0, HEAD_DIM * SEGMENT) };
        let keys: &mut [[f32; SEGMENT]; HEAD_DIM] = at_mut(keys.as_chunks_mut().0, 0);
        // SAFETY: as above.
        let values = unsafe { scratch.values.slice_mut(0, SEGMENT * Self::WIDTH) };
        let scale = F32s::splat(scale);
        for group in (0..seen).step_by(TILE) {
            let (coded, tails) = keys.split_at_mut(HEAD_DIM - Self::TAIL);
            for (at, keys) in coded.chunks_mut(GROUP).enumerate() {
                for key in (group..group + TILE).step_by(LANES) {
                    let by = source.scales(at, key);
                    for (pair, keys) in keys.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                        let pair = source.keys(at * GROUP + 2 * pair, key, by);
                        for (keys, x) in keys.iter_mut().zip(pair) {
                            (if Self::TAIL == 0 { x } else { x * scale }).store(at_mut(keys, key));
                        }
                    }
                }
            }
            for (d, keys) in tails.iter_mut().enumerate() {
                for key in (group..group + TILE).step_by(LANES) {
                    source.tails(d, key).store(at_mut(keys, key));
                }
            }
            for key in group..group + TILE {
                let value = &mut values[key * Self::WIDTH..][..Self::WIDTH];
                if Self::OWN {
                    for d in (0..Self::WIDTH).step_by(LANES) {
                        source.values(key, d).store(at_mut(value, d));
                    }
                } else {
                    for (x, of_keys) in value.iter_mut().zip(&keys[..VALUE]) {
                        *x = of_keys[key];
                    }
                }
            }
        }
        Gathered { keys, values }
    }

    /// Attends with the rows of an item to one segment.
    #[inline(always)]
    fn attend_rows(&self, of: &mut Rowwise, source: &impl KeyValues) {
        let rows = of.states.len() / Self::STATE;
        let mut row = 0;
        while rows - row >= QUERY_ROWS {
            self.attend_tile::<QUERY_ROWS>(of, source, row);
            row += QUERY_ROWS;
        }
        if QUERY_ROWS > 3 && rows - row >= 3 {
            self.attend_tile::<3>(of, source, row);
            row += 3;
        }
        while row < rows {
            self.attend_tile::<1>(of, source, row);
            row += 1;
        }
    }

    /// Attends with rows `first .. first + R`.
    #[inline(always)]
    fn attend_tile<const R: usize>(&self, of: &mut Rowwise, source: &impl KeyValues, first: usize) {
        let reach =
            std::array::from_fn(|r| (self.end(of.item, first + r) + 1).saturating_sub(of.start).min(SEGMENT));
        if reach == [0; R] {
            return;
        }
        let queries: [&[f32; HEAD_DIM]; R] = std::array::from_fn(|r| {
            let token = of.item.tokens.start + (first + r) / Self::GROUP;
            let head = of.item.head * Self::GROUP + (first + r) % Self::GROUP;
            // SAFETY: queries were rotated before a barrier, and are not written in this phase.
            at(unsafe { self.qkv.padded(token) }, head * HEAD_DIM)
        });
        let skip = std::array::from_fn(|r| {
            let first = (self.position(of.item, first + r) + 1).saturating_sub(self.window);
            first.saturating_sub(of.start).min(reach[r])
        });
        let of_keys = self.cache.key_scale(self.layer, of.item.head);
        let scale = self.scale * if Self::TAIL == 0 { of_keys } else { 1.0 };
        let tile: Tile<R, HEAD_DIM, VALUE> = Tile { queries, reach, skip, scale };
        let states = &mut of.states[first * Self::STATE..][..R * Self::STATE];
        if of.merging {
            tile.attend(source, of.scores, of.current);
            let both = states.chunks_exact_mut(Self::STATE).zip(of.current.chunks_exact(Self::STATE));
            for ((total, current), reach) in both.zip(reach) {
                if reach > 0 {
                    merge(total, current);
                }
            }
        } else {
            tile.attend(source, of.scores, states);
        }
    }
}

/// The rows of an item, and one segment.
struct Rowwise<'a> {
    item: &'a Item<'a>,
    /// Position of the segment's first key.
    start: usize,
    /// One state per row.
    states: &'a mut [f32],
    scores: &'a mut [f32],
    /// One state per row of the current tile.
    current: &'a mut [f32],
    /// Whether states are merged into existing ones.
    merging: bool,
}

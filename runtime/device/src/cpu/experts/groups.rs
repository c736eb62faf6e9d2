//! Groups the slots of a step by expert, and splits their work among the lanes.

use super::super::rows::Rows;
use super::super::team::Lane;
use std::ops::Range;

/// The cost of reading a tile, in rows multiplied with it: with fewer rows, memory bounds the product.
const TILE_COST: usize = 4;

/// Slots grouped by expert. Every lane computes the same groups.
#[derive(Debug)]
pub(super) struct Groups {
    /// The start of each expert's slots, followed by the end of the last one's.
    starts: Vec<usize>,
    /// Slots by expert, in ascending order within one.
    slots: Vec<usize>,
}

impl Groups {
    /// Room for `slots` slots.
    pub(super) fn with_capacity(slots: usize) -> Groups {
        Groups { starts: Vec::new(), slots: Vec::with_capacity(slots) }
    }

    /// Groups the choices of the first `rows` rows among `experts` experts.
    ///
    /// # Panics
    /// When a choice is not one of the experts.
    ///
    /// # Safety
    /// No lane writes `routing` in this phase.
    pub(super) unsafe fn fill<const ROUTING: usize>(
        &mut self,
        rows: usize,
        routing: &Rows<ROUTING>,
        experts: usize,
    ) {
        let active = const { super::active(ROUTING) };
        let chosen = |slot: usize| {
            // SAFETY: the caller's promise.
            let id = unsafe { routing.part(slot / active, active + slot % active, 1) }[0] as usize;
            assert!(id < experts, "there is no expert {id}");
            id
        };
        // A counting sort: first the counts, then the ends, then each slot, from the last, at its index.
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        self.slots.clear();
        self.slots.resize(rows * active, 0);
        for slot in 0..rows * active {
            self.starts[chosen(slot)] += 1;
        }
        let mut end = 0;
        for start in &mut self.starts {
            end += *start;
            *start = end;
        }
        for slot in (0..rows * active).rev() {
            let place = &mut self.starts[chosen(slot)];
            *place -= 1;
            self.slots[*place] = slot;
        }
    }

    /// The chosen experts, with their slots.
    fn chosen(&self) -> impl Iterator<Item = (usize, &[usize])> {
        let slots = self.starts.windows(2).map(|ends| &self.slots[ends[0]..ends[1]]);
        slots.enumerate().filter(|(_, slots)| !slots.is_empty())
    }

    /// Calls `work` with each expert, its slots, and this lane's share of its `tiles` tiles. Shares are
    /// contiguous and cost about the same.
    pub(super) fn share(&self, lane: &Lane, tiles: usize, work: impl FnMut(usize, &[usize], Range<usize>)) {
        self.split(lane.index(), lane.lanes(), tiles, work);
    }

    fn split(
        &self,
        index: usize,
        lanes: usize,
        tiles: usize,
        mut work: impl FnMut(usize, &[usize], Range<usize>),
    ) {
        let cost = |slots: &[usize]| slots.len() + TILE_COST;
        let total: usize = self.chosen().map(|(_, slots)| cost(slots) * tiles).sum();
        let (first, end) = (total * index / lanes, total * (index + 1) / lanes);
        let mut before = 0;
        for (expert, slots) in self.chosen() {
            // A tile belongs to the lane whose share contains the start of its cost.
            let tile = |at: usize| at.saturating_sub(before).div_ceil(cost(slots)).min(tiles);
            let mine = tile(first)..tile(end);
            if !mine.is_empty() {
                work(expert, slots, mine);
            }
            before += cost(slots) * tiles;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_grouped_in_order_and_every_tile_is_one_lane_s() {
        let mut routing = Rows::<6>::new(5);
        let ids = [[3, 0, 7], [3, 7, 1], [0, 3, 1], [9, 3, 0], [3, 1, 2]];
        for (row, ids) in ids.iter().enumerate() {
            routing.row_mut(row)[3..].copy_from_slice(&ids.map(|id| id as f32));
        }
        let mut groups = Groups::with_capacity(15);
        for rows in [5, 1, 0, 5] {
            // SAFETY: no lanes run.
            unsafe { groups.fill(rows, &routing, 10) };
            let expected = (0..10)
                .map(|id| (id, (0..rows * 3).filter(|slot| ids[slot / 3][slot % 3] == id).collect()))
                .filter(|(_, slots): &(usize, Vec<usize>)| !slots.is_empty());
            assert!(groups.chosen().map(|(id, slots)| (id, slots.to_vec())).eq(expected));
        }
        for (lanes, tiles) in [(1, 4), (2, 1), (3, 7), (64, 2)] {
            let mut seen = vec![vec![0; tiles]; 10];
            for lane in 0..lanes {
                groups.split(lane, lanes, tiles, |expert, _, mine| mine.for_each(|t| seen[expert][t] += 1));
            }
            for (expert, seen) in seen.iter().enumerate() {
                let chosen = usize::from(ids.as_flattened().contains(&expert));
                assert_eq!(seen, &vec![chosen; tiles], "expert {expert}, {lanes} lanes, {tiles} tiles");
            }
        }
    }
}

//! Recurrent state on the device, its copies, and the addresses of it and of K/V blocks.

use super::driver::Stream;
use super::fault::Fault;
use super::pointer::{Cache, Pointer};
use monomorph_model::{BlockId, SlidingId, Slot, SnapshotId, StateCopy, StatePlace, States};

/// The recurrent state of the layers of one body, by part: for each layer that of all slots, followed by that
/// of all snapshots. It is never cleared: a sequence at position 0 starts from zeros and ignores what is
/// stored.
#[derive(Clone, Copy, Debug)]
pub struct State<const PARTS: usize> {
    pub(super) parts: [Cache; PARTS],
}

impl<const PARTS: usize> State<PARTS> {
    /// A part's state in one layer, numbered within the body.
    pub fn part(&self, part: usize, layer: usize) -> Pointer {
        self.parts[part].layer(layer)
    }
}

/// The addresses of slots and snapshots in the states of all bodies, and of K/V blocks in their caches:
/// everything that a copy covers.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(super) states: States,
    parts: Vec<CopyRegion>,
    blocks: usize,
    caches: Vec<CopyRegion>,
    /// The same of layers with a sliding window.
    sliding: (usize, Vec<CopyRegion>),
}

/// A part of the states of one body, or its cache.
#[derive(Clone, Copy, Debug)]
struct CopyRegion {
    cache: Cache,
    /// Bytes of a slot, snapshot or block in one layer.
    bytes: u64,
    layers: usize,
}

impl Places {
    /// For these numbers of slots and snapshots.
    pub(super) fn new(states: States) -> Places {
        Places { states, parts: Vec::new(), blocks: 0, caches: Vec::new(), sliding: (0, Vec::new()) }
    }

    /// Number of slots and snapshots together.
    pub(super) fn count(&self) -> u64 {
        self.states.count()
    }

    /// Adds a part of a body's states.
    pub(super) fn push(&mut self, cache: Cache, bytes: u64, layers: usize) {
        if bytes > 0 {
            self.parts.push(CopyRegion { cache, bytes, layers });
        }
    }

    /// Adds the cache of a body, which holds `blocks` blocks of `bytes` per layer.
    pub(super) fn push_blocks(&mut self, cache: Cache, bytes: u64, layers: usize, blocks: usize) {
        self.blocks = blocks;
        self.caches.push(CopyRegion { cache, bytes, layers });
    }

    /// Adds the cache of a body whose layers have a sliding window, as [`Self::push_blocks`] does.
    pub(super) fn push_sliding(&mut self, cache: Cache, bytes: u64, layers: usize, blocks: usize) {
        self.sliding.0 = blocks;
        self.sliding.1.push(CopyRegion { cache, bytes, layers });
    }

    /// Number of K/V blocks on the device.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The addresses and sizes of the parts of a K/V block, in the order of bodies and layers.
    ///
    /// # Panics
    /// When there is no such block.
    pub(super) fn block(&self, BlockId(block): BlockId) -> Vec<(Pointer, u64)> {
        assert!((block as usize) < self.blocks, "there is no K/V block {block}");
        parts_at(&self.caches, u64::from(block)).collect()
    }

    /// As [`Self::block`], of a block of layers with a sliding window.
    ///
    /// # Panics
    /// When there is no such block.
    pub(super) fn sliding(&self, SlidingId(block): SlidingId) -> Vec<(Pointer, u64)> {
        let (blocks, caches) = &self.sliding;
        assert!((block as usize) < *blocks, "there is no block {block} of layers with a sliding window");
        parts_at(caches, u64::from(block)).collect()
    }

    /// The addresses and sizes of the parts of a recurrent state.
    ///
    /// # Panics
    /// When there is no such slot or snapshot.
    pub(super) fn state(&self, place: StatePlace) -> Vec<(Pointer, u64)> {
        parts_at(&self.parts, self.place(place)).collect()
    }

    /// Copies the state of a sequence, over all layers, after the work already in the stream.
    ///
    /// # Errors
    /// When a copy is refused.
    ///
    /// # Panics
    /// When there is no such slot or snapshot.
    pub(crate) fn copy(&self, stream: &Stream, copy: &StateCopy) -> Result<(), Fault> {
        let [from, to] = [copy.from, copy.to].map(|place| self.place(place));
        for (from, to, bytes) in self.ranges(from, to) {
            // SAFETY: both ranges lie in the arena, in different places.
            unsafe { stream.copy(from.0, to.0, bytes) }?;
        }
        Ok(())
    }

    fn place(&self, place: StatePlace) -> u64 {
        match place {
            StatePlace::Slot(Slot(at)) => {
                assert!((at as usize) < self.states.sequences, "there is no slot {at}");
                u64::from(at)
            }
            StatePlace::Snapshot(SnapshotId(at)) => {
                assert!((at as usize) < self.states.snapshots, "there is no snapshot {at}");
                self.states.sequences as u64 + u64::from(at)
            }
        }
    }

    /// Source, destination and bytes of each part.
    fn ranges(&self, from: u64, to: u64) -> impl Iterator<Item = (Pointer, Pointer, u64)> {
        let to = parts_at(&self.parts, to);
        parts_at(&self.parts, from).zip(to).map(|((from, bytes), (to, _))| (from, to, bytes))
    }
}

/// The address and bytes of place `at` in every layer of each part.
fn parts_at(parts: &[CopyRegion], at: u64) -> impl Iterator<Item = (Pointer, u64)> {
    parts.iter().flat_map(move |part| {
        (0..part.layers).map(move |layer| (part.cache.layer(layer).offset(at * part.bytes), part.bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(start: u64, layer_bytes: u64) -> Cache {
        Cache { start: Pointer(start), layer_bytes }
    }

    #[test]
    fn states_and_caches_lie_layer_after_layer() {
        let state = State { parts: [cache(1024, 48), cache(4096, 320), cache(8192, 16)] };
        assert_eq!((state.part(0, 0), state.part(0, 2)), (Pointer(1024), Pointer(1120)));
        assert_eq!((state.part(1, 0), state.part(1, 2)), (Pointer(4096), Pointer(4736)));
        assert_eq!((state.part(2, 0), state.part(2, 2)), (Pointer(8192), Pointer(8224)));
    }

    #[test]
    fn a_copy_is_the_same_place_of_every_layer_and_part() {
        let mut places = Places::new(States { sequences: 2, snapshots: 3 });
        places.push(cache(1000, 50), 10, 2);
        places.push(cache(4000, 20), 4, 1);
        places.push(cache(9000, 0), 0, 2);
        let from = places.place(StatePlace::Slot(Slot(1)));
        let to = places.place(StatePlace::Snapshot(SnapshotId(2)));
        let ranges: Vec<_> = places.ranges(from, to).map(|(from, to, bytes)| (from.0, to.0, bytes)).collect();
        assert_eq!(ranges, [(1010, 1040, 10), (1060, 1090, 10), (4004, 4016, 4)]);
    }

    #[test]
    fn a_block_is_the_same_place_of_every_layer_of_every_cache() {
        let mut places = Places::new(States { sequences: 2, snapshots: 3 });
        places.push_blocks(cache(1000, 50), 10, 2, 5);
        places.push_blocks(cache(4000, 20), 4, 1, 5);
        places.push(cache(9000, 50), 10, 1);
        let at = |parts: Vec<(Pointer, u64)>| {
            parts.into_iter().map(|(at, bytes)| (at.0, bytes)).collect::<Vec<_>>()
        };
        assert_eq!(at(places.block(BlockId(4))), [(1040, 10), (1090, 10), (4016, 4)]);
        assert_eq!(at(places.state(StatePlace::Snapshot(SnapshotId(0)))), [(9020, 10)]);
    }

    #[test]
    fn layers_with_a_window_have_places_of_their_own() {
        let mut places = Places::new(States { sequences: 2, snapshots: 3 });
        places.push_blocks(cache(1000, 50), 10, 2, 5);
        places.push_sliding(cache(4000, 24), 8, 2, 3);
        assert_eq!(places.sliding(SlidingId(2)), [(Pointer(4016), 8), (Pointer(4040), 8)]);
        assert_eq!(places.block(BlockId(2)), [(Pointer(1020), 10), (Pointer(1070), 10)]);
    }

    #[test]
    #[should_panic(expected = "no block 3 of layers with a sliding window")]
    fn a_block_too_many_of_layers_with_a_window_is_refused() {
        let mut places = Places::new(States { sequences: 2, snapshots: 3 });
        places.push_sliding(cache(4000, 24), 8, 2, 3);
        places.sliding(SlidingId(3));
    }

    #[test]
    #[should_panic(expected = "no K/V block 5")]
    fn a_block_too_many_is_refused() {
        let mut places = Places::new(States { sequences: 2, snapshots: 3 });
        places.push_blocks(cache(1000, 50), 10, 2, 5);
        places.block(BlockId(5));
    }

    #[test]
    #[should_panic(expected = "no snapshot 3")]
    fn a_snapshot_too_many_is_refused() {
        Places::new(States { sequences: 2, snapshots: 3 }).place(StatePlace::Snapshot(SnapshotId(3)));
    }
}

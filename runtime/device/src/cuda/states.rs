//! Recurrent state on the device, and its copies.

use super::driver::Stream;
use super::fault::Fault;
use super::memory::{Cache, Pointer};
use monomorph_model::{Slot, SnapshotId, StateCopy, StatePlace};

/// The recurrent state of the layers of one body: of every layer that of all slots and then of all snapshots, one behind another
/// (templates/cuda/lib/delta.cuh). It is never cleared: a sequence at position 0 starts from zeros whatever stands there.
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub(super) windows: Cache,
    pub(super) matrices: Cache,
    pub(super) journals: Cache,
}

impl State {
    /// The convolution's inputs of one layer, counted among the body's.
    pub fn windows(&self, layer: usize) -> Pointer {
        self.windows.layer(layer)
    }

    /// The matrices of one layer, counted among the body's.
    pub fn matrices(&self, layer: usize) -> Pointer {
        self.matrices.layer(layer)
    }

    /// What may be taken back in one layer, counted among the body's.
    pub fn journals(&self, layer: usize) -> Pointer {
        self.journals.layer(layer)
    }
}

/// Where in all bodies' states slots and snapshots stand: what a copy has to touch.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    slots: usize,
    pub(super) snapshots: usize,
    parts: Vec<Part>,
}

/// A part of the states of one body.
#[derive(Clone, Copy, Debug)]
struct Part {
    cache: Cache,
    /// Of a place in a layer.
    bytes: u64,
    layers: usize,
}

impl Places {
    /// For so many of each.
    pub(super) fn new(slots: usize, snapshots: usize) -> Places {
        Places { slots, snapshots, parts: Vec::new() }
    }

    /// Slots and snapshots.
    pub(super) fn count(&self) -> u64 {
        (self.slots + self.snapshots) as u64
    }

    /// Adds a part of a body.
    pub(super) fn push(&mut self, cache: Cache, bytes: u64, layers: usize) {
        if bytes > 0 {
            self.parts.push(Part { cache, bytes, layers });
        }
    }

    /// Copies the state of a sequence, all layers, behind what the stream was told before.
    ///
    /// # Errors
    /// When a copy is refused.
    ///
    /// # Panics
    /// When there is no such slot or snapshot.
    pub(crate) fn copy(&self, stream: &Stream, copy: &StateCopy) -> Result<(), Fault> {
        let [from, to] = [copy.from, copy.to].map(|place| self.place(place));
        for (from, to, bytes) in self.ranges(from, to) {
            // SAFETY: both ranges are of the arena, and different places.
            unsafe { stream.copy(from.0, to.0, bytes) }?;
        }
        Ok(())
    }

    fn place(&self, place: StatePlace) -> u64 {
        match place {
            StatePlace::Slot(Slot(at)) => {
                assert!((at as usize) < self.slots, "there is no slot {at}");
                u64::from(at)
            }
            StatePlace::Snapshot(SnapshotId(at)) => {
                assert!((at as usize) < self.snapshots, "there is no snapshot {at}");
                self.slots as u64 + u64::from(at)
            }
        }
    }

    /// From where to where, and how many bytes.
    fn ranges(&self, from: u64, to: u64) -> impl Iterator<Item = (Pointer, Pointer, u64)> {
        self.parts.iter().flat_map(move |part| {
            (0..part.layers).map(move |layer| {
                let [from, to] = [from, to].map(|at| part.cache.layer(layer).offset(at * part.bytes));
                (from, to, part.bytes)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(start: u64, layer_bytes: u64) -> Cache {
        Cache { start: Pointer(start), layer_bytes }
    }

    #[test]
    fn states_and_caches_lie_layer_after_layer() {
        let state = State { windows: cache(1024, 48), matrices: cache(4096, 320), journals: cache(8192, 16) };
        assert_eq!((state.windows(0), state.windows(2)), (Pointer(1024), Pointer(1120)));
        assert_eq!((state.matrices(0), state.matrices(2)), (Pointer(4096), Pointer(4736)));
        assert_eq!((state.journals(0), state.journals(2)), (Pointer(8192), Pointer(8224)));
    }

    #[test]
    fn a_copy_is_the_same_place_of_every_layer_and_part() {
        let mut places = Places::new(2, 3);
        places.push(cache(1000, 50), 10, 2);
        places.push(cache(4000, 20), 4, 1);
        places.push(cache(9000, 0), 0, 2);
        let from = places.place(StatePlace::Slot(Slot(1)));
        let to = places.place(StatePlace::Snapshot(SnapshotId(2)));
        let ranges: Vec<_> = places.ranges(from, to).map(|(from, to, bytes)| (from.0, to.0, bytes)).collect();
        assert_eq!(ranges, [(1010, 1040, 10), (1060, 1090, 10), (4004, 4016, 4)]);
    }

    #[test]
    #[should_panic(expected = "no snapshot 3")]
    fn a_snapshot_too_many_is_refused() {
        Places::new(2, 3).place(StatePlace::Snapshot(SnapshotId(3)));
    }
}

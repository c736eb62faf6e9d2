//! State that layers keep between steps: K/V caches and recurrent states.

use super::kv_offload::KvOffload;
use monomorph_model::{BlockId, KvScales, OffloadSlot, SlidingId, StateCopy, StatePlace};

/// The state of the layers of one body, or of several: a pair is both, in order. A recurrent state has no
/// blocks, and a cache no states, and blocks of one kind only: such operations leave it unchanged.
pub trait Keeps {
    /// Adds the bytes of a layer's part of a block, and the part numbers of all layers.
    fn parts(&self, _parts: &mut Vec<(usize, &'static [usize])>) {}

    /// Makes reads of blocks on disk go through `offload`.
    fn stream(&mut self, _far: &KvOffload) {}

    /// Begins to measure the keys and values that are written.
    fn measure(&mut self) {}

    /// Ends that: sets static scales by what was measured, and adds them to `set`.
    ///
    /// # Errors
    /// When something was not finite.
    fn set_scales(&mut self, _set: &mut KvScales) -> Result<(), String> {
        Ok(())
    }

    /// Writes the parts of a group of blocks to a place on disk, while no lane runs.
    ///
    /// # Errors
    /// When the disk is full or fails.
    ///
    /// # Panics
    /// When there is no such block, they are not a group, or no blocks are kept on disk.
    fn offload_blocks(&mut self, _blocks: &[BlockId], _to: OffloadSlot) -> Result<(), String> {
        Ok(())
    }

    /// Copies a block, over all layers, to the front of `into`; returns the rest of it.
    ///
    /// # Panics
    /// When there is no such block, or it is larger than `into`.
    fn read_block<'a>(&mut self, _block: BlockId, into: &'a mut [u8]) -> &'a mut [u8] {
        into
    }

    /// Writes what [`Self::read_block`] read, from the front of `from`; returns the rest of it.
    ///
    /// # Panics
    /// As [`Self::read_block`].
    fn write_block<'a>(&mut self, _block: BlockId, from: &'a [u8]) -> &'a [u8] {
        from
    }

    /// As [`Self::read_block`], of layers with a sliding window.
    ///
    /// # Panics
    /// As [`Self::read_block`].
    fn read_sliding<'a>(&mut self, _block: SlidingId, into: &'a mut [u8]) -> &'a mut [u8] {
        into
    }

    /// As [`Self::write_block`], of layers with a sliding window.
    ///
    /// # Panics
    /// As [`Self::read_block`].
    fn write_sliding<'a>(&mut self, _block: SlidingId, from: &'a [u8]) -> &'a [u8] {
        from
    }

    /// Copies the state of a sequence, over all layers.
    ///
    /// # Panics
    /// When there is no such slot or snapshot.
    fn copy(&mut self, _copy: &StateCopy) {}

    /// Copies a state, over all layers, to the front of `into`; returns the rest of it.
    ///
    /// # Panics
    /// When there is no such slot or snapshot, or its state is larger than `into`.
    fn read_state<'a>(&mut self, _place: StatePlace, into: &'a mut [u8]) -> &'a mut [u8] {
        into
    }

    /// Writes what [`Self::read_state`] read, from the front of `from`; returns the rest of it.
    ///
    /// # Panics
    /// As [`Self::read_state`].
    fn write_state<'a>(&mut self, _place: StatePlace, from: &'a [u8]) -> &'a [u8] {
        from
    }
}

impl Keeps for () {}

impl<A: Keeps, B: Keeps> Keeps for (&mut A, B) {
    fn parts(&self, parts: &mut Vec<(usize, &'static [usize])>) {
        self.0.parts(parts);
        self.1.parts(parts);
    }

    fn stream(&mut self, offload: &KvOffload) {
        self.0.stream(offload);
        self.1.stream(offload);
    }

    fn measure(&mut self) {
        self.0.measure();
        self.1.measure();
    }

    fn set_scales(&mut self, set: &mut KvScales) -> Result<(), String> {
        self.0.set_scales(set)?;
        self.1.set_scales(set)
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.0.offload_blocks(blocks, to)?;
        self.1.offload_blocks(blocks, to)
    }

    fn read_block<'a>(&mut self, block: BlockId, into: &'a mut [u8]) -> &'a mut [u8] {
        let left = self.0.read_block(block, into);
        self.1.read_block(block, left)
    }

    fn write_block<'a>(&mut self, block: BlockId, from: &'a [u8]) -> &'a [u8] {
        let left = self.0.write_block(block, from);
        self.1.write_block(block, left)
    }

    fn read_sliding<'a>(&mut self, block: SlidingId, into: &'a mut [u8]) -> &'a mut [u8] {
        let left = self.0.read_sliding(block, into);
        self.1.read_sliding(block, left)
    }

    fn write_sliding<'a>(&mut self, block: SlidingId, from: &'a [u8]) -> &'a [u8] {
        let left = self.0.write_sliding(block, from);
        self.1.write_sliding(block, left)
    }

    fn copy(&mut self, copy: &StateCopy) {
        self.0.copy(copy);
        self.1.copy(copy);
    }

    fn read_state<'a>(&mut self, place: StatePlace, into: &'a mut [u8]) -> &'a mut [u8] {
        let left = self.0.read_state(place, into);
        self.1.read_state(place, left)
    }

    fn write_state<'a>(&mut self, place: StatePlace, from: &'a [u8]) -> &'a [u8] {
        let left = self.0.write_state(place, from);
        self.1.write_state(place, left)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kv::KvCache;
    use super::super::recurrent::RecurrentState;
    use super::*;
    use monomorph_model::{Slot, States};

    #[test]
    fn a_pair_is_both_in_order_and_each_knows_its_own() {
        type Cache = KvCache<f32, 1, 16, 16>;
        let (mut first, mut last) = (Cache::new(&[0, 2], 3).unwrap(), Cache::new(&[1], 3).unwrap());
        let states = States { sequences: 1, snapshots: 0 };
        type State = RecurrentState<1, 4, 4, 12, 2>;
        let mut state = State::new(1, states).unwrap();
        let of_state: Vec<u8> = (0..State::BYTES).map(|at| (at % 7) as u8).collect();
        let of_block: Vec<u8> = (0..Cache::block_bytes(3)).map(|at| (at % 251) as u8).collect();
        let mut all = (&mut first, (&mut state, (&mut last, ())));

        let mut parts = Vec::new();
        all.parts(&mut parts);
        assert_eq!(parts, [(Cache::block_bytes(1), &[0, 2][..]), (Cache::block_bytes(1), &[1])]);

        assert!(all.write_block(BlockId(1), &of_block).is_empty());
        assert!(all.write_state(StatePlace::Slot(Slot(0)), &of_state).is_empty());
        let (mut block, mut kept) = (vec![0; of_block.len()], vec![0; of_state.len()]);
        assert!(all.read_block(BlockId(1), &mut block).is_empty());
        assert!(all.read_state(StatePlace::Slot(Slot(0)), &mut kept).is_empty());
        assert_eq!((&block, &kept), (&of_block, &of_state));

        let mut behind = vec![0; Cache::block_bytes(1)];
        last.read_block(BlockId(1), &mut behind);
        assert_eq!(behind, of_block[Cache::block_bytes(2)..], "the last cache has what stands last");
    }

    #[test]
    fn blocks_of_the_one_kind_are_none_of_the_other() {
        type Cache = KvCache<f32, 1, 16, 16>;
        let (mut whole, mut sliding) = (Cache::new(&[0], 2).unwrap(), Cache::sliding(2, 3).unwrap());
        let mut all = (&mut sliding, (&mut whole, ()));
        let mut parts = Vec::new();
        all.parts(&mut parts);
        assert_eq!(parts, [(Cache::block_bytes(1), &[0][..])], "none of them goes to disk");
        let bytes = |layers: usize, by: u8| vec![by; Cache::block_bytes(layers)];
        assert!(all.write_block(BlockId(1), &bytes(1, 64)).is_empty());
        assert!(all.write_sliding(SlidingId(2), &bytes(2, 66)).is_empty());
        let (mut block, mut window) = (bytes(1, 0), bytes(2, 0));
        assert!(all.read_block(BlockId(1), &mut block).is_empty());
        assert!(all.read_sliding(SlidingId(2), &mut window).is_empty());
        assert_eq!((block, window), (bytes(1, 64), bytes(2, 66)));
    }
}

//! Blocks and states of which each process has a part.

use crate::support::*;
use monomorph_engine::scripted::{Recurrent, Shape, Small, Windowed};
use monomorph_hosts::{Duties, Ended, Options, Room, Share};
use monomorph_model::{
    BlockId, LoadError, LoadOptions, Model, ModelSpec, Progress, RowOutput, SlidingId, SlidingSpec, Slot,
    SnapshotId, StatePlace, Step, StepOutput, Ticket, Weights,
};
use monomorph_sampling::Sampled;
use std::collections::HashMap;

/// A model that is nothing but memory: this rank's half of every block and state.
struct Half {
    blocks: HashMap<BlockId, Vec<u8>>,
    sliding: HashMap<SlidingId, Vec<u8>>,
    states: HashMap<StatePlace, Vec<u8>>,
}

type Whole = Windowed<Recurrent<Small>, 24>;

const SPEC: &ModelSpec = Whole::SPEC;

fn sliding_bytes() -> usize {
    Whole::SLIDING.expect("a window").block_bytes
}

impl Model for Half {
    const SPEC: &'static ModelSpec = SPEC;
    const SLIDING: Option<SlidingSpec> = Whole::SLIDING;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        Err(LoadError::NoPacking)
    }

    fn blocks(&self) -> usize {
        4
    }

    fn sliding_blocks(&self) -> usize {
        3
    }

    fn sequences(&self) -> usize {
        2
    }

    fn snapshots(&self) -> usize {
        2
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        assert_eq!(into.len(), SPEC.block_bytes / 2);
        into.copy_from_slice(&self.blocks[&block]);
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        assert_eq!(from.len(), SPEC.block_bytes / 2);
        self.blocks.insert(block, from.to_vec());
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        assert_eq!(into.len(), sliding_bytes() / 2);
        into.copy_from_slice(&self.sliding[&block]);
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        assert_eq!(from.len(), sliding_bytes() / 2);
        self.sliding.insert(block, from.to_vec());
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        assert_eq!(into.len(), SPEC.state_bytes as usize / 2);
        into.copy_from_slice(&self.states[&place]);
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        assert_eq!(from.len(), SPEC.state_bytes as usize / 2);
        self.states.insert(place, from.to_vec());
    }

    fn submit(&mut self, _: &Step) -> Ticket {
        Ticket(1)
    }

    fn collect(&mut self, _: Ticket) -> StepOutput {
        let sampled = Sampled { id: 1, logprob: None, top: Vec::new() };
        StepOutput { rows: vec![RowOutput::Sampled(sampled)] }
    }
}

struct Halves;

impl Duties for Halves {
    type Model = Half;

    fn plan(&mut self) -> Result<Room, String> {
        Ok(Room { blocks: 4, sliding: 3, sequences: 2, snapshots: 2, places: 0, group: 0 })
    }

    fn load(&mut self, _: Room) -> Result<Half, String> {
        Ok(Half { blocks: HashMap::new(), sliding: HashMap::new(), states: HashMap::new() })
    }

    fn identify(&mut self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn join(&mut self, _: &mut Half, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn sum(&mut self, _: &mut Half) -> Result<u64, String> {
        Ok(3)
    }

    fn record(&mut self, _: &mut Half) -> Result<(), String> {
        Ok(())
    }
}

/// What was written in halves is read in order, whatever else was written between.
pub fn come_back() {
    let (listener, address) = listener();
    let parts = || Options { share: Share::Part, ..options() };
    let following = worker(&address, 1, hello(2), parts(), Halves);
    let mut lead = head(listener, hello(2), parts(), Halves).join().unwrap().unwrap();
    let bytes = |seed: u8, count: usize| -> Vec<u8> {
        (0..count).map(|at| (at as u8).wrapping_mul(7) ^ seed).collect()
    };
    let state_bytes = SPEC.state_bytes as usize;
    let places = [StatePlace::Slot(Slot(1)), StatePlace::Snapshot(SnapshotId(1))];
    for block in 0..4 {
        lead.write_block(BlockId(block), &bytes(block as u8, SPEC.block_bytes));
    }
    for block in 0..3 {
        lead.write_sliding(SlidingId(block), &bytes(block as u8 ^ 90, sliding_bytes()));
    }
    for (seed, place) in places.into_iter().enumerate() {
        lead.write_state(place, &bytes(seed as u8 + 9, state_bytes));
    }
    for block in 0..4 {
        let mut into = vec![0; SPEC.block_bytes];
        lead.read_block(BlockId(block), &mut into);
        assert_eq!(into, bytes(block as u8, SPEC.block_bytes));
    }
    for block in 0..3 {
        let mut into = vec![0; sliding_bytes()];
        lead.read_sliding(SlidingId(block), &mut into);
        assert_eq!(into, bytes(block as u8 ^ 90, sliding_bytes()));
    }
    for (seed, place) in places.into_iter().enumerate() {
        let mut into = vec![0; state_bytes];
        lead.read_state(place, &mut into);
        assert_eq!(into, bytes(seed as u8 + 9, state_bytes));
    }
    drop(lead);
    assert_eq!(ended(&following), Ended::Stopped);
}

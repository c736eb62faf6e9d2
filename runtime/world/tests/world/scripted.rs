//! Ranks without devices. Each samples a hash of all steps it was given, so that a step lost or out of order
//! shows in ids, and does wrong what its [`Scenario`] plants.

use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_model::{
    BlockId, Figures, HardwareSpec, HostGuard, LoadError, LoadOptions, Model, ModelSpec, OffloadOptions,
    OffloadRoom, OffloadSlot, Progress, Protocol, RowOutput, Shown, SlidingId, SlidingSpec, StatePlace,
    StatesWanted, Step, StepOutput, Ticket, Verified, Weights,
};
use monomorph_sampling::Sampled;
use monomorph_world::{Rank, Seat, World};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const RANKS: usize = 3;
/// Bytes of a rank's part of a block and of a state.
pub const BLOCK: usize = 6;
pub const STATE: usize = 10;
/// Bytes of its part of a block of layers with a sliding window, and how many there are.
pub const SLIDING: usize = 4;
pub const SLIDING_BLOCKS: usize = 5;

/// What a rank does wrong.
#[derive(Clone, Debug)]
pub enum Defect {
    /// It panics in its `n`th call.
    Panics(usize),
    /// Its device does nothing, and it panics when it is asked for what that did.
    Vanishes,
    /// It does not do what its `n`th call says.
    Skips(usize),
    /// It runs step `n` after the step behind it.
    Swaps(u64),
    /// It samples another id in a row of step `n`.
    Samples(u64, usize),
    /// It drafts another id in a row of step `n`.
    Drafts(u64, usize),
    /// It samples one token more in a row of step `n`.
    Accepts(u64, usize),
    /// It loses a row of step `n`.
    Loses(u64, usize),
    /// Sending blocks to disk fails.
    DiskFull,
    /// It returns an error instead of a model.
    DoesNotLoad,
    /// It unwinds before it returns one.
    PanicsInLoad,
    /// It is not ready before this is unlocked.
    LoadsLate(Arc<Mutex<()>>),
    /// It claims a block more than was agreed on.
    Claims,
}

/// How a world's ranks behave, and what they were asked for.
#[derive(Default)]
pub struct Scenario {
    pub defect: Option<(usize, Defect)>,
    /// Most microseconds that a call of a rank takes, at random.
    pub delay: u64,
    /// Blocks, sequences and snapshots that each rank has room for.
    pub rooms: [[usize; 3]; RANKS],
    /// Whether a rank's devices wait for those of others: no step is done before all ranks were given it.
    pub polls: bool,
    pub log: Mutex<[Vec<String>; RANKS]>,
    pub given: Mutex<[u64; RANKS]>,
    pub changed: Condvar,
    pub loads: Mutex<Vec<LoadOptions>>,
    pub dropped: Mutex<usize>,
}

static SCENARIOS: Mutex<Option<HashMap<usize, Arc<Scenario>>>> = Mutex::new(None);

impl Scenario {
    pub fn new(defect: Option<(usize, Defect)>) -> Scenario {
        Scenario { defect, rooms: [[8, 4, 2]; RANKS], delay: 40, ..Scenario::default() }
    }

    /// Loads a world of it. The scenario is found by its number, which stands in for a context.
    pub fn load(self) -> (Arc<Scenario>, Result<World<Scripted>, LoadError>) {
        let scenario = Arc::new(self);
        let number = {
            let mut all = SCENARIOS.lock().unwrap();
            let all = all.get_or_insert_default();
            all.insert(all.len(), Arc::clone(&scenario));
            all.len() - 1
        };
        let world = World::load(&Weights::Dummy { seed: 0 }, &options(number), &Progress::default());
        (scenario, world)
    }

    pub fn world(self) -> (Arc<Scenario>, World<Scripted>) {
        let (scenario, world) = self.load();
        (scenario, world.expect("every rank loads"))
    }
}

pub fn options(scenario: usize) -> LoadOptions {
    LoadOptions {
        blocks: None,
        context: scenario,
        shorter: false,
        states: StatesWanted::default(),
        offload: Some(OffloadOptions {
            directory: PathBuf::new(),
            bytes: 300,
            depth: 1,
            page_bytes: 1,
            resident: None,
            window_pages: None,
        }),
        memory_fraction: 1.0,
        guard: HostGuard { bytes: 0, available: || u64::MAX },
        threads: 7,
        report: |_| {},
        ordinals: vec![5, 0, 2],
        process: None,
        kv_calibration: Vec::new(),
    }
}

/// A rank without a device.
pub struct Scripted {
    rank: usize,
    scenario: Arc<Scenario>,
    room: [usize; 3],
    calls: usize,
    random: u64,
    /// A hash of all steps so far.
    hash: u64,
    submitted: u64,
    held_back: Option<Step>,
    /// Steps in flight: number and ids.
    pending: VecDeque<(u64, Vec<u32>)>,
    blocks: HashMap<u32, [u8; BLOCK]>,
    sliding: HashMap<u32, [u8; SLIDING]>,
    state: [u8; STATE],
}

pub const SPEC: ModelSpec = ModelSpec {
    target: "none/scripted/none",
    model: "scripted",
    specs: &[],
    commit: None,
    hardware: HardwareSpec { name: "none", features: &[], cuda: None },
    hidden: 64,
    layers: 1,
    vocabulary: 50_000,
    context: 4096,
    block_tokens: 16,
    block_bytes: BLOCK,
    state_bytes: STATE as u64,
    step_tokens: 64,
    step_sequences: 16,
    kv_formats: KvFormats::both(Cached::F32),
    kv_exact_layers: 0,
    kv_scales: None,
    kv_elements: 0,
    formats: &[],
    tensors: &[],
    unused: &[],
    files: &[],
    canaries: &[],
    weight_bytes: 100,
    scratch_bytes: 20,
    protocol: Protocol { stop_ids: &[2], chat_template: None, tools: None, reasoning: None },
    sampling: &[],
    figures: Figures {
        limit_decode: 0.0,
        limit_prefill: 0.0,
        predicted_decode: 0.0,
        predicted_prefill: 0.0,
        copy_bandwidth: 4e9,
    },
    draft: None,
    batch_invariant: None,
};

impl Scripted {
    /// Notes a call; whether the rank carries it out.
    fn called(&mut self, what: String) -> bool {
        self.calls += 1;
        self.scenario.log.lock().unwrap()[self.rank].push(what);
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let delay = (self.random >> 33) % (self.scenario.delay + 1);
        if delay > self.scenario.delay / 2 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        match self.defect() {
            Some(Defect::Panics(call)) if *call == self.calls => panic!("planted in call {call}"),
            Some(Defect::Skips(call)) => *call != self.calls,
            _ => true,
        }
    }

    fn defect(&self) -> Option<&Defect> {
        self.scenario.defect.as_ref().filter(|(rank, _)| *rank == self.rank).map(|(_, defect)| defect)
    }

    fn run(&mut self, step: &Step) {
        for byte in format!("{step:?}").bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let ids =
            (0..step.sequences.len() as u64).map(|row| ((self.hash ^ (row * 977)) >> 20) as u32 % 50_000);
        self.pending.push_back((self.submitted, ids.collect()));
    }
}

impl Rank for Scripted {
    fn load_rank(_: &Weights, options: &LoadOptions, _: &Progress, seat: Seat) -> Result<Self, LoadError> {
        let scenario = Arc::clone(&SCENARIOS.lock().unwrap().as_ref().unwrap()[&options.context]);
        scenario.loads.lock().unwrap().push(options.clone());
        let rank = seat.rank();
        assert_eq!((seat.ranks(), seat.ordinal()), (RANKS, [5, 0, 2][rank]));
        seat.meet("devices")?;
        let defect = scenario.defect.as_ref().filter(|(it, _)| *it == rank).map(|(_, defect)| defect);
        match defect {
            Some(Defect::DoesNotLoad) => return Err(LoadError::Hardware("it is planted".to_owned())),
            Some(Defect::PanicsInLoad) => panic!("planted while loading"),
            Some(Defect::LoadsLate(gate)) => drop(gate.lock()),
            _ => {}
        }
        let mut room = seat.least("memory", scenario.rooms[rank])?;
        if let Some(Defect::Claims) = defect {
            room[0] += 1;
        }
        seat.meet("programs")?;
        Ok(Scripted {
            rank,
            room,
            calls: 0,
            random: 77 + rank as u64,
            hash: 1,
            submitted: 0,
            held_back: None,
            pending: VecDeque::new(),
            blocks: HashMap::new(),
            sliding: HashMap::new(),
            state: [0; STATE],
            scenario,
        })
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        *self.scenario.dropped.lock().unwrap() += 1;
    }
}

impl Model for Scripted {
    const SPEC: &'static ModelSpec = &SPEC;
    const SLIDING: Option<SlidingSpec> = Some(SlidingSpec { window: 20, block_bytes: SLIDING });
    const STEPS_IN_FLIGHT: usize = 2;
    const SPLIT_SAMPLING: bool = true;
    const RANKS: usize = RANKS;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        unreachable!("a rank is loaded with the others")
    }

    fn blocks(&self) -> usize {
        self.room[0]
    }

    fn sliding_blocks(&self) -> usize {
        SLIDING_BLOCKS
    }

    fn sequences(&self) -> usize {
        self.room[1]
    }

    fn snapshots(&self) -> usize {
        self.room[2]
    }

    fn offload(&self) -> Option<OffloadRoom> {
        Some(OffloadRoom { places: 5, group: 2 })
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.called(format!("offload_blocks {blocks:?} {to:?}"));
        match self.defect() {
            Some(Defect::DiskFull) => Err("the disk is full".to_owned()),
            _ => Ok(()),
        }
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        if self.called(format!("read_block {block:?} {}", into.len())) {
            into.copy_from_slice(&self.blocks[&block.0]);
        }
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        if self.called(format!("write_block {block:?}")) {
            assert_eq!(usize::from(from[0]), self.rank * BLOCK, "parts are in the order of ranks");
            self.blocks.insert(block.0, from.try_into().expect("a rank's part"));
        }
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        if self.called(format!("read_sliding {block:?} {}", into.len())) {
            into.copy_from_slice(&self.sliding[&block.0]);
        }
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        if self.called(format!("write_sliding {block:?}")) {
            assert_eq!(usize::from(from[0]), 50 + self.rank * SLIDING, "parts are in the order of ranks");
            self.sliding.insert(block.0, from.try_into().expect("a rank's part"));
        }
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        if self.called(format!("read_state {place:?} {}", into.len())) {
            into.copy_from_slice(&self.state);
        }
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        if self.called(format!("write_state {place:?}")) {
            assert_eq!(usize::from(from[0]), 100 + self.rank * STATE, "parts are in the order of ranks");
            self.state = from.try_into().expect("a rank's part");
        }
    }

    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        self.called(format!("see {images:?} {layers:?}"));
        self.submitted += 1;
        self.run(&Step::default());
        self.scenario.given.lock().unwrap()[self.rank] = self.submitted;
        self.scenario.changed.notify_all();
        Ticket(self.submitted)
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        let carried_out = self.called(format!("submit {step:?}"));
        self.submitted += 1;
        let step = if carried_out { step.clone() } else { Step::default() };
        match self.defect() {
            Some(Defect::Swaps(number)) if *number == self.submitted => self.held_back = Some(step),
            _ => {
                self.run(&step);
                if let Some(held_back) = self.held_back.take() {
                    self.run(&held_back);
                    let ids = self.pending.len() - 2;
                    self.pending.swap(ids, ids + 1);
                }
            }
        }
        if let Some(Defect::Vanishes) = self.defect() {
            return Ticket(self.submitted);
        }
        self.scenario.given.lock().unwrap()[self.rank] = self.submitted;
        self.scenario.changed.notify_all();
        Ticket(self.submitted)
    }

    fn sample(&mut self, step: &Step) {
        self.called(format!("sample {}", step.sequences.len()));
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.called(format!("collect {ticket:?}"));
        let step = ticket.0;
        assert!(!matches!(self.defect(), Some(Defect::Vanishes)), "planted in collect");
        if self.scenario.polls {
            let given = self.scenario.given.lock().unwrap();
            drop(self.scenario.changed.wait_while(given, |given| given.iter().any(|it| *it < step)));
        }
        let (_, ids) = self.pending.pop_front().expect("a step in flight");
        let defect = self.defect().cloned();
        let row = |(row, id): (usize, u32)| {
            let planted = |at: u64, of: usize| at == step && of == row;
            let (mut sampled, mut drafts) = (vec![id, id + 1], vec![id + 2, id + 3]);
            match defect {
                Some(Defect::Samples(at, of)) if planted(at, of) => *sampled.last_mut().unwrap() += 1,
                Some(Defect::Drafts(at, of)) if planted(at, of) => drafts[1] += 1,
                Some(Defect::Accepts(at, of)) if planted(at, of) => sampled.push(7),
                Some(Defect::Loses(at, of)) if planted(at, of) => {
                    return RowOutput::Lost("the disk failed".to_owned());
                }
                _ => {}
            }
            let sampled_as = |id: &u32| Sampled { id: *id, logprob: None, top: Vec::new() };
            match row % 3 {
                0 => RowOutput::Sampled(sampled_as(&sampled[sampled.len() - 1])),
                1 => RowOutput::None,
                _ => RowOutput::Verified(Verified {
                    sampled: sampled.iter().map(sampled_as).collect(),
                    drafts,
                }),
            }
        };
        StepOutput { rows: ids.into_iter().enumerate().map(row).collect() }
    }
}

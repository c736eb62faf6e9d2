//! The one contract between generated and hand-written code.
//!
//! A generated layer stack implements [`Model`]; the engine and every verb of the server are generic over
//! it. Nothing here knows a model, a format or a card: what a stack is, it says in [`ModelSpec`].

mod fault;
mod name;
mod spec;
mod states;
mod step;

pub use fault::{device_fault, set_device_fault};
pub use name::is_instance;
pub use spec::{
    BatchInvariantSpec, CanarySpec, ClassFormat, CudaSpec, DraftSpec, Drafter, Figures, FileSpec,
    HardwareSpec, ModelSpec, Protocol, SamplingPreset, TensorSpec, piece,
};
pub use states::{StateRoom, States, StatesWanted};
pub use step::{
    BlockId, FarId, NOT_NUMBERS, Output, RowOutput, SequenceStep, Slot, SnapshotId, StateCopy, StatePlace,
    Step, StepOutput, Ticket, Tokens, Verified,
};

use monomorph_weights::{Checkpoint, WeightsError};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A compiled model with its weights on its device.
///
/// `submit` need not wait for the device; `collect` does. The device runs steps in the order they were
/// submitted, and tickets are collected in that order. One thread, the engine's forward thread, makes all
/// calls.
pub trait Model: Sized + Send + 'static {
    /// Everything the build fixed.
    const SPEC: &'static ModelSpec;

    /// Steps that may be submitted and not collected at one time; at least 1. One whose `submit` computes the
    /// step gains nothing by more than 1 and would compute rows that turn out to be surplus; one whose
    /// `submit` only starts it says 2, so that its device need not wait for the host between two steps.
    const STEPS_IN_FLIGHT: usize = 1;

    /// Whether it begins a step before it knows what the step's rows are sampled by: see [`Model::sample`].
    /// One with two steps in flight does, or nothing that needs the host between two tokens could go on
    /// ahead.
    const SAMPLES_APART: bool = false;

    /// Drafts of a sequence that a step verifies together, whoever [made](Drafter) them; 0 for a stack that
    /// verifies none. Which tokens to feed is known only when a step is collected: a stack that verifies
    /// drafts has one step in flight.
    const DRAFTS: usize = Self::SPEC.drafts();

    /// Whether this machine has the hardware the stack was compiled for, without claiming any of it. (CPUs
    /// are checked before anything else runs.)
    ///
    /// # Errors
    /// [`LoadError::Hardware`] saying what is missing.
    fn check_hardware() -> Result<(), LoadError> {
        Ok(())
    }

    /// Claims memory and loads the weights.
    ///
    /// # Errors
    /// When the checkpoint's tensors are not the ones this stack was compiled for, or memory is short.
    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError>;

    /// K/V blocks it has: what was asked for, or what the device's memory held.
    fn blocks(&self) -> usize;

    /// Sequences that may run at a time, [`ModelSpec::step_sequences`] or fewer: [`Slot`]s lie below it.
    fn sequences(&self) -> usize;

    /// Snapshots of a sequence's recurrent state it has room for; 0 of a model without such state.
    fn snapshots(&self) -> usize {
        0
    }

    /// Places on disk for groups of K/V blocks, and the blocks of a group: see [`LoadOptions::far`]. None of
    /// a model that keeps none there.
    fn far(&self) -> Option<FarRoom> {
        None
    }

    /// Writes a group of blocks to a place on disk: all their tokens' keys and values. Called while no step
    /// is in flight. The blocks are as they were, and what was in the place is gone.
    ///
    /// # Errors
    /// When the disk is full or fails; the place holds nothing then.
    fn send_far(&mut self, blocks: &[BlockId], to: FarId) -> Result<(), String> {
        Err(format!("{blocks:?} cannot be sent to {to:?}: this server keeps no blocks on disk"))
    }

    /// Copies the keys and values of a block, all layers', into `into`,
    /// [`block_bytes`](ModelSpec::block_bytes) of it. Called between steps: none is in flight. What the bytes
    /// mean is the model's own.
    ///
    /// # Panics
    /// When there is no such block, or `into` is of another size.
    fn read_block(&mut self, block: BlockId, into: &mut [u8]);

    /// Puts back what [`Self::read_block`] read, of this block or another. Called between steps.
    ///
    /// # Panics
    /// As [`Self::read_block`].
    fn write_block(&mut self, block: BlockId, from: &[u8]);

    /// Copies a recurrent state, all layers', into `into`, [`state_bytes`](ModelSpec::state_bytes) of it;
    /// where there is none, nothing. Called between steps.
    ///
    /// # Panics
    /// When there is no such place, or `into` is of another size.
    fn read_state(&mut self, _place: StatePlace, into: &mut [u8]) {
        assert!(into.is_empty(), "a model without recurrent state");
    }

    /// Puts back what [`Self::read_state`] read, in this place or another. Called between steps. Blocks and
    /// state of a sequence that are all put back are as good as never taken: it goes on from its slot as if
    /// it had stayed there.
    ///
    /// # Panics
    /// As [`Self::read_state`].
    fn write_state(&mut self, _place: StatePlace, from: &[u8]) {
        assert!(from.is_empty(), "a model without recurrent state");
    }

    /// Starts one batched forward step. The caller may change `step` as soon as this returns.
    fn submit(&mut self, step: &Step) -> Ticket;

    /// Samples in the step submitted last, which said that its [sampling follows](Step::sampling_follows):
    /// the same step, with histories, biases and masks. Called once for each such step, before another is
    /// submitted and before it is collected. A row that nobody wants any more has none of them and is greedy:
    /// what is sampled there is dropped.
    ///
    /// # Panics
    /// When no step waits for this.
    fn sample(&mut self, step: &Step) {
        unreachable!("a model that samples where it is submitted a step of {} rows", step.sequences.len());
    }

    /// Waits for a step and returns what it produced, one row per sequence of the step, in its order.
    fn collect(&mut self, ticket: Ticket) -> StepOutput;
}

/// Where weights come from.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a server has one")]
pub enum Weights {
    /// The model's own.
    Checkpoint(Checkpoint),
    /// Made up, of the right formats and sizes: for measuring speed without the files.
    Dummy {
        /// Equal seeds give equal weights.
        seed: u64,
    },
}

impl Weights {
    /// The checkpoint, for stacks that make nothing up.
    ///
    /// # Errors
    /// [`LoadError::DummyWeights`] where there is none.
    pub fn checkpoint(&self) -> Result<&Checkpoint, LoadError> {
        match self {
            Weights::Checkpoint(checkpoint) => Ok(checkpoint),
            Weights::Dummy { .. } => Err(LoadError::DummyWeights),
        }
    }
}

/// What a start of the server decides about memory and threads.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// K/V blocks to claim, each of [`ModelSpec::block_tokens`] tokens over all layers; `None` claims what
    /// the device's memory holds, and on a CPU, whose memory is everybody's, what one sequence needs.
    pub blocks: Option<usize>,
    /// Longest sequence that will be asked for, in tokens; with the [`reach`](ModelSpec::reach) of its
    /// drafts.
    pub context: usize,
    /// Whether fewer blocks will do than that takes, because nobody asked for this length; ignored by a CPU,
    /// whose memory is planned before.
    pub shorter: bool,
    /// Sequences and snapshots to claim recurrent state for, each of [`ModelSpec::state_bytes`]; ignored by a
    /// model without such state. A CPU, whose memory is planned before, is told both.
    pub states: StatesWanted,
    /// Where K/V blocks that the device need not hold are kept, if anywhere.
    pub far: Option<FarOptions>,
    /// Most of the device's memory to use, as a part of it; ignored by a CPU.
    pub memory_fraction: f64,
    /// What stays free of the machine's memory; on a CPU, whose memory is planned before, that plan has seen
    /// to it.
    pub guard: HostGuard,
    /// Threads of the CPU team, or that pack weights for another device.
    pub threads: usize,
    /// Takes lines about what is going to be claimed, before it is.
    pub report: fn(std::fmt::Arguments),
}

/// Memory of the machine that is to stay free, whoever takes it.
#[derive(Clone, Copy, Debug)]
pub struct HostGuard {
    /// How much; 0 guards nothing.
    pub bytes: u64,
    /// Bytes that may still be had now without ending somebody.
    pub available: fn() -> u64,
}

impl HostGuard {
    /// Refuses to take so many bytes where that would not leave enough.
    ///
    /// # Errors
    /// [`LoadError::HostMemory`] saying what is left.
    pub fn check(&self, taking: u64) -> Result<(), LoadError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let (available, guard) = ((self.available)(), self.bytes);
        match available.checked_sub(taking) {
            Some(left) if left >= guard => Ok(()),
            _ => Err(LoadError::HostMemory { available, taking, guard }),
        }
    }
}

/// Places on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarRoom {
    /// How many; [`FarId`]s lie below it.
    pub places: usize,
    /// Blocks that each holds.
    pub group: usize,
}

/// Room on disk for K/V blocks, which steps read from there.
#[derive(Clone, Debug)]
pub struct FarOptions {
    /// Where the file is made; it is gone when the model is.
    pub directory: PathBuf,
    /// Most bytes of it.
    pub bytes: u64,
    /// Most pages on their way to or from the disk at a time.
    pub depth: u32,
    /// About how many bytes are written and read at a time: one layer's of a group of blocks.
    pub page_bytes: usize,
    /// Blocks that a sequence keeps on the device; half of all unless given.
    pub resident: Option<NonZero<usize>>,
    /// Pages that are staged at a time, where that is to be less than the device chooses: for tests.
    pub window_pages: Option<usize>,
}

impl LoadOptions {
    /// The states asked for; of what nobody asked for all that steps take, and no snapshots.
    pub fn states(&self, spec: &ModelSpec) -> States {
        let StatesWanted { sequences, snapshots } = self.states;
        States { sequences: sequences.unwrap_or(spec.step_sequences), snapshots: snapshots.unwrap_or(0) }
    }

    /// The blocks asked for, or those of one sequence.
    pub fn blocks_or_one_sequence(&self, block_tokens: usize) -> usize {
        self.blocks.unwrap_or_else(|| self.context.div_ceil(block_tokens))
    }
}

/// How far loading has come, readable from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    loaded: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Says how many bytes there are to load.
    pub fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    /// Reports `bytes` more as loaded.
    pub fn advance(&self, bytes: u64) {
        self.loaded.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes loaded and bytes expected.
    pub fn read(&self) -> (u64, u64) {
        (self.loaded.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// Why a model could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The file is unreadable, or a tensor is missing, surplus, mis-shaped or in another format.
    Weights(WeightsError),
    /// The device cannot hold what was asked for.
    Memory {
        /// What was being claimed.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        available: u64,
        /// What to ask for instead, if anything would fit.
        fits: Option<String>,
    },
    /// The machine's own memory is about to run out: going on would invite the system to end processes.
    HostMemory {
        /// Bytes left.
        available: u64,
        /// Bytes that were about to be taken.
        taking: u64,
        /// Bytes that are to stay free.
        guard: u64,
    },
    /// The system refuses a thread.
    Threads(std::io::Error),
    /// The hardware this server was compiled for is not there.
    Hardware(String),
    /// The device failed while loading.
    Device(String),
    /// Made-up weights were asked of a stack that has none.
    DummyWeights,
    /// There can be no file for K/V blocks.
    Far(String),
}

impl From<WeightsError> for LoadError {
    fn from(error: WeightsError) -> Self {
        LoadError::Weights(error)
    }
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::Weights(error) => error.fmt(f),
            LoadError::Memory { what, needed, available, fits } => {
                write!(f, "{what} needs {needed} bytes, and {available} are available")?;
                fits.iter().try_for_each(|fits| write!(f, "; {fits}"))
            }
            LoadError::HostMemory { available, taking, guard } => {
                write!(f, "stopped loading: this machine has {available} bytes of memory left")?;
                if *taking > 0 {
                    write!(f, ", {taking} more are about to be taken")?;
                }
                write!(f, ", and {guard} are to stay free (--memory-guard)")
            }
            LoadError::Threads(error) => write!(f, "a thread could not be started: {error}"),
            LoadError::Hardware(what) => f.write_str(what),
            LoadError::Device(what) => write!(f, "the device failed while loading: {what}"),
            LoadError::Far(what) => write!(f, "K/V blocks cannot be kept on disk: {what}"),
            LoadError::DummyWeights => {
                f.write_str("made-up weights are for GPU servers; this one wants a checkpoint")
            }
        }
    }
}

impl std::error::Error for LoadError {}

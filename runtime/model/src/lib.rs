//! The contract between a model on its device and everything above it.
//!
//! A device implements [`Model`] over the layer stacks that are generated for it; the engine and every verb
//! of the server are generic over it. Nothing here knows a model, a format or a card: a stack describes
//! itself in [`ModelSpec`].

mod fault;
mod kv;
mod meter;
mod name;
mod profile;
mod sliding;
mod spec;
mod states;
mod step;
mod vision;

pub use fault::{EXIT_DEVICE_FAULT, device_fault, set_device_fault};
pub use kv::{KvScaleSpec, KvScales};
pub use meter::{RankCounts, RankMeter};
pub use monomorph_abi::sliding::{Sliding, SlidingNeeds, SlidingRoom};
pub use monomorph_weights::{HostGuard, Shortage, Watch};
pub use name::is_instance;
pub use profile::{PhaseClock, PhaseWork, ProfileSpec, ProfiledKind, ProfiledPhase, ProfiledStep, TimedRow};
pub use sliding::SlidingSpec;
pub use spec::{
    BatchInvariantSpec, CanarySpec, ClassFormat, CudaSpec, DraftSpec, Drafter, Figures, FileSpec,
    HardwareSpec, ModelSpec, Protocol, SamplingPreset, TensorSpec, chunk,
};
pub use states::{StateRoom, States, StatesWanted};
pub use step::{
    BlockId, ImageSpan, NOT_NUMBERS, OffloadSlot, Output, Positions, RowOutput, SequenceImages, SequenceStep,
    SlidingId, SlidingTable, Slot, SnapshotId, StateCopy, StatePlace, Step, StepOutput, Ticket, Tokens,
    Verified,
};
pub use vision::{FeatureSlot, Grid, ImageTokens, Patches, Shown, VisionFamily, VisionSpec};

use monomorph_weights::{Checkpoint, WeightsError};
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A compiled model with its weights on its device.
///
/// `submit` need not wait for the device; `collect` does. The device runs steps in the order they were
/// submitted, and tickets are collected in that order. One thread, the engine's forward thread, makes all
/// calls.
pub trait Model: Sized + Send + 'static {
    /// What the build fixed.
    const SPEC: &'static ModelSpec;

    /// Its layers with a sliding window, where these give back blocks that they read no more; `None` where
    /// all layers keep all blocks of a sequence.
    const SLIDING: Option<SlidingSpec> = None;

    /// Its vision tower, of a build that takes images.
    const VISION: Option<VisionSpec> = None;

    /// The steps whose phases it times, of a profiling build.
    const PROFILE: Option<&'static ProfileSpec> = None;

    /// Most steps in flight: submitted and not collected; at least 1. A stack that computes the step within
    /// `submit` says 1: more would gain nothing and compute rows that are discarded. One that only launches
    /// it says 2, so that its device need not wait for the host between two steps.
    const STEPS_IN_FLIGHT: usize = 1;

    /// Split sampling: whether a step may start before its sampling inputs are known, which [`Model::sample`]
    /// binds later. Needed for two steps in flight: otherwise sequences that need the host between two tokens
    /// could not run ahead.
    const SPLIT_SAMPLING: bool = false;

    /// Drafts of a sequence that a step verifies together, from any [`Drafter`]; 0 for a stack that verifies
    /// none. Which tokens to feed next is known only when a step is collected, so a stack that verifies
    /// drafts has one step in flight.
    const DRAFTS: usize = Self::SPEC.drafts();

    /// Ranks that the build is cut into, a device each, over all processes of a world: 1 of a build that is
    /// not cut.
    const RANKS: usize = 1;

    /// How many processes may share the ranks; they share them equally.
    const PROCESSES: &'static [usize] = &[1];

    /// Checks that this machine has the hardware the stack was compiled for, without claiming any of it:
    /// devices of these numbers, or the first ones where there are none. (CPUs are checked before anything
    /// else runs.)
    ///
    /// # Errors
    /// [`LoadError::Hardware`] saying what is missing.
    fn check_hardware(_ordinals: &[usize]) -> Result<(), LoadError> {
        Ok(())
    }

    /// The number of the device that has this UUID (`GPU-` and 36 characters in lower case), as
    /// [`LoadOptions::ordinals`] takes it.
    ///
    /// # Errors
    /// [`LoadError::Hardware`] saying which devices there are.
    fn ordinal_of(uuid: &str) -> Result<usize, LoadError> {
        Err(LoadError::Hardware(format!(
            "there is no device {uuid}: this build runs on none that has a UUID"
        )))
    }

    /// Claims memory and loads the weights.
    ///
    /// # Errors
    /// When the checkpoint's tensors are not the ones this stack was compiled for, or memory is short.
    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError>;

    /// Writes what [`Model::load`] makes of a checkpoint to a file, which it takes in its place and maps.
    /// `by` says which release writes it. Returns the file's bytes. A file of this name that is one of packed
    /// weights is replaced when the new one is whole.
    ///
    /// # Errors
    /// As [`Model::load`]; when the file cannot be written; of a stack that has no such file
    /// [`LoadError::NoPacking`].
    fn pack(
        _weights: &Weights,
        _to: &Path,
        _by: &str,
        _threads: usize,
        _progress: &Progress,
    ) -> Result<u64, LoadError> {
        Err(LoadError::NoPacking)
    }

    /// Number of K/V blocks: as asked for, or as many as the device's memory holds.
    fn blocks(&self) -> usize;

    /// Number of blocks of its layers with a [sliding window](Self::SLIDING): [`SlidingSpec::blocks`] of what
    /// it was loaded with. 0 of a model that has none.
    fn sliding_blocks(&self) -> usize {
        0
    }

    /// Sequences that may run at a time, [`ModelSpec::step_sequences`] or fewer: [`Slot`]s lie below it.
    fn sequences(&self) -> usize;

    /// Snapshots of a sequence's recurrent state it has room for; 0 of a model without such state.
    fn snapshots(&self) -> usize {
        0
    }

    /// What each of its ranks counts, by rank; none of a model that is no [several](Model::RANKS) ranks.
    fn meters(&self) -> Vec<Arc<RankMeter>> {
        Vec::new()
    }

    /// Places on disk for groups of K/V blocks, and the blocks of a group: see [`LoadOptions::offload`]. None
    /// of a model that keeps none there.
    fn offload(&self) -> Option<OffloadRoom> {
        None
    }

    /// Writes the keys and values of a group of blocks to a slot on disk, over what it held. Called while no
    /// step is in flight. The blocks do not change.
    ///
    /// # Errors
    /// When the disk is full or fails; the slot holds nothing then.
    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        Err(format!("{blocks:?} cannot be sent to {to:?}: this server keeps no blocks on disk"))
    }

    /// Copies the keys and values of a block, over all layers, to `into`, which has
    /// [`block_bytes`](ModelSpec::block_bytes). Called while no step is in flight. Only the model knows what
    /// the bytes mean.
    ///
    /// # Panics
    /// When there is no such block, or `into` has another size.
    fn read_block(&mut self, block: BlockId, into: &mut [u8]);

    /// Writes what [`Self::read_block`] read, to the same block or another. Called while no step is in
    /// flight.
    ///
    /// # Panics
    /// As [`Self::read_block`].
    fn write_block(&mut self, block: BlockId, from: &[u8]);

    /// As [`Self::read_block`], of a block of the layers with a [sliding window](Self::SLIDING).
    ///
    /// # Panics
    /// As [`Self::read_block`], and of a model that has no such layers.
    fn read_sliding(&mut self, block: SlidingId, _into: &mut [u8]) {
        panic!("{block:?} of a model without a sliding window");
    }

    /// Writes what [`Self::read_sliding`] read, to the same block or another. Called while no step is in
    /// flight.
    ///
    /// # Panics
    /// As [`Self::read_sliding`].
    fn write_sliding(&mut self, block: SlidingId, _from: &[u8]) {
        panic!("{block:?} of a model without a sliding window");
    }

    /// Copies a recurrent state, over all layers, to `into`, which has
    /// [`state_bytes`](ModelSpec::state_bytes); does nothing for a model without such state. Called while no
    /// step is in flight.
    ///
    /// # Panics
    /// When there is no such place, or `into` has another size.
    fn read_state(&mut self, _place: StatePlace, into: &mut [u8]) {
        assert!(into.is_empty(), "a model without recurrent state");
    }

    /// Writes what [`Self::read_state`] read, to the same place or another. Called while no step is in
    /// flight. A sequence whose blocks and state were all written back goes on from its slot as if it had
    /// stayed there.
    ///
    /// # Panics
    /// As [`Self::read_state`].
    fn write_state(&mut self, _place: StatePlace, from: &[u8]) {
        assert!(from.is_empty(), "a model without recurrent state");
    }

    /// Begins to measure keys and values that steps write, for [`Self::set_kv_scales`].
    fn measure_kv(&mut self) {}

    /// Ends that, and sets the static scales of keys and values by what was measured. Bytes of blocks mean
    /// something else then: called before any sequence has blocks that are read again.
    ///
    /// # Errors
    /// When something was not finite, or nothing measures.
    fn set_kv_scales(&mut self) -> Result<KvScales, String> {
        Err("nothing measures keys and values of this build".to_owned())
    }

    /// Names a collective that all processes of a world then [join](Self::join).
    ///
    /// # Errors
    /// When that fails, or the model adds nothing up over processes.
    fn identify() -> Result<Vec<u8>, String> {
        Err("this build adds nothing up over processes".to_owned())
    }

    /// Versions of the device's driver and of the library that adds up over processes: they must be equal in
    /// all of them.
    ///
    /// # Errors
    /// When there is no such library.
    fn versions(_options: &LoadOptions) -> Result<(String, String), String> {
        Ok(("none".to_owned(), "none".to_owned()))
    }

    /// Joins the collective of this name as process `rank` of `processes`, before any step.
    ///
    /// # Errors
    /// When that fails, or the model adds nothing up over processes.
    fn join(&mut self, _name: &[u8], _rank: usize, _processes: usize) -> Result<(), String> {
        Err("this build adds nothing up over processes".to_owned())
    }

    /// Adds a whole number up over all processes of the collective, as its steps add.
    ///
    /// # Errors
    /// When that fails, or the model adds nothing up over processes.
    fn add_up(&mut self, _value: u64) -> Result<u64, String> {
        Err("this build adds nothing up over processes".to_owned())
    }

    /// Records programs that hold collectives, once those are joined.
    ///
    /// # Errors
    /// When that fails.
    fn record(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Starts a step that runs layers of the [tower](Self::VISION) over [some images](VisionSpec::takes), [as
    /// many](VisionSpec::part) as others can wait for. The first layer embeds the images before, and the last
    /// one leaves the rows of their tokens in their slots, no two of which are the same. Between the steps of
    /// an image there may be others, but none of another image, and none that reads its slot. What shares a
    /// pass changes no image's rows, but a device may choose its kernels by the patches of all. Collected as
    /// any other step; returns nothing.
    ///
    /// # Panics
    /// When there is no such slot or layer, the images are more than a pass takes or of other than whole
    /// merge blocks, or there is not one row of pixels a patch; of a model without a tower.
    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        panic!("layers {layers:?} over {} images of a model without a vision tower", images.len());
    }

    /// Starts one batched forward step. The caller may change `step` as soon as this returns.
    fn submit(&mut self, step: &Step) -> Ticket;

    /// Binds the sampling inputs of the step submitted last, which said that its [sampling
    /// follows](Step::sampling_follows): `step` is the same, with histories, biases and masks. Called once
    /// for each such step, before another is submitted and before it is collected. A row whose sequence has
    /// ended has none of them and is sampled greedily; its token is dropped.
    ///
    /// # Panics
    /// When no step waits for this.
    fn sample(&mut self, step: &Step) {
        unreachable!("a model that samples where it is submitted a step of {} rows", step.sequences.len());
    }

    /// Waits for a step and returns what it produced, one row per sequence of the step, in its order.
    fn collect(&mut self, ticket: Ticket) -> StepOutput;

    /// Begins to take the times of phases, or ends that, between two steps. Returns those taken since the
    /// last call, by [`ProfileSpec::names`]; rows at the end that were never timed may lack.
    ///
    /// # Panics
    /// Of a build that is none for profiling. Unwinds when the device has failed.
    fn time_phases(&mut self, on: bool) -> Vec<TimedRow> {
        unreachable!("times are to be taken: {on}, and this is no profiling build")
    }
}

/// The source of the weights.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a server has one")]
pub enum Weights {
    /// A checkpoint of the model.
    Checkpoint(Checkpoint),
    /// Random, in the right formats and sizes: for measuring speed without the files.
    Dummy {
        /// Equal seeds give equal weights.
        seed: u64,
    },
}

/// What a start of the server decides about memory and threads.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// K/V blocks to claim, each of [`ModelSpec::block_tokens`] tokens over all layers; `None` claims what
    /// the device's memory holds, and on a CPU, which shares its memory with other processes, what one
    /// sequence needs.
    pub blocks: Option<usize>,
    /// Longest sequence that will be asked for, in tokens; with the [`reach`](ModelSpec::reach) of its
    /// drafts.
    pub context: usize,
    /// Whether fewer blocks than that takes will do, because the length is only a default; ignored by a CPU,
    /// whose memory is planned before.
    pub shorter: bool,
    /// Sequences and snapshots to claim recurrent state for, each of [`ModelSpec::state_bytes`]; ignored by a
    /// model without such state. On a CPU both are fixed by the memory plan.
    pub states: StatesWanted,
    /// Where K/V blocks that the device need not hold are kept, if anywhere.
    pub offload: Option<OffloadOptions>,
    /// Most of the device's memory to use, as a part of it; ignored by a CPU.
    pub memory_fraction: f64,
    /// Host memory that must stay free, whatever was planned: others may take some while weights are loaded.
    pub guard: HostGuard,
    /// Threads of the CPU team, or that pack weights for another device.
    pub threads: usize,
    /// Receives a line about each claim of memory before it is made.
    pub report: fn(std::fmt::Arguments),
    /// The driver's numbers of the GPUs to use, one for each of the [ranks](Model::RANKS) of this process;
    /// empty for the first ones.
    /// Ignored by a CPU.
    pub ordinals: Vec<usize>,
    /// Which of several processes this is, for a build that is spread over them.
    pub process: Option<ProcessOptions>,
    /// Tokens by which a loaded model [measures](Model::measure_kv) the static scales of keys and values;
    /// none leave them as they are. The caller of [`Model::load`] runs them.
    pub kv_calibration: Vec<u32>,
}

/// One of the processes that a model is spread over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOptions {
    /// Which one: its part of the weights.
    pub rank: usize,
    /// How many there are.
    pub processes: usize,
    /// The library that adds up over processes; `None` looks for its usual names.
    pub nccl: Option<PathBuf>,
}

/// Places on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadRoom {
    /// How many; [`OffloadSlot`]s lie below it.
    pub places: usize,
    /// Blocks that each holds.
    pub group: usize,
}

/// Room on disk for K/V blocks, which steps read from there.
#[derive(Clone, Debug)]
pub struct OffloadOptions {
    /// Directory of the file, which is removed with the model.
    pub directory: PathBuf,
    /// Most bytes of it.
    pub bytes: u64,
    /// Most pages in transfer at a time.
    pub depth: u32,
    /// Bytes of one transfer, about: one layer of a group of blocks.
    pub page_bytes: usize,
    /// Most blocks of a sequence on the device; by default half of all.
    pub resident: Option<NonZero<usize>>,
    /// Most pages staged at a time, if fewer than the device would choose: for tests.
    pub window_pages: Option<usize>,
}

impl LoadOptions {
    /// The states asked for; by default as many as a step takes sequences, and no snapshots.
    pub fn states(&self, spec: &ModelSpec) -> States {
        let StatesWanted { sequences, snapshots } = self.states;
        States { sequences: sequences.unwrap_or(spec.step_sequences), snapshots: snapshots.unwrap_or(0) }
    }

    /// The driver's numbers of the GPUs of so many ranks.
    ///
    /// # Errors
    /// When others were asked for than one for each.
    pub fn ordinals(&self, ranks: usize) -> Result<Vec<usize>, LoadError> {
        let given = &self.ordinals;
        match given.len() {
            0 => Ok((0..ranks).collect()),
            count if count == ranks && (1..count).all(|at| !given[..at].contains(&given[at])) => {
                Ok(given.clone())
            }
            _ => Err(LoadError::Hardware(format!(
                "this server runs on {ranks} GPUs, each another, and was given the numbers {given:?}"
            ))),
        }
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

/// Why a model did not load.
#[derive(Debug)]
pub enum LoadError {
    /// The file is unreadable, or a tensor is missing, unexpected, mis-shaped or in another format.
    Weights(WeightsError),
    /// The device's memory is too small for what was asked for.
    Memory {
        /// The purpose of the claim.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        available: u64,
        /// What would fit, if anything would.
        fits: Option<String>,
    },
    /// Host memory is about to run out: going on would make the system kill processes.
    HostMemory(Shortage),
    /// The system refused to start a thread.
    Threads(std::io::Error),
    /// The hardware this server was compiled for is not there.
    Hardware(String),
    /// The device failed while loading.
    Device(String),
    /// A file of packed weights was asked of a stack that has none.
    NoPacking,
    /// The file for K/V blocks cannot be made.
    Offload(String),
    /// The static scales of keys and values could not be measured.
    Calibration(String),
    /// One of several ranks did not load.
    Rank {
        /// Which of them.
        rank: usize,
        /// Number of its device.
        ordinal: usize,
        /// Why it did not.
        error: Box<LoadError>,
    },
}

impl From<WeightsError> for LoadError {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Memory { shortage, .. } => LoadError::HostMemory(shortage),
            error => LoadError::Weights(error),
        }
    }
}

impl From<Shortage> for LoadError {
    fn from(shortage: Shortage) -> Self {
        LoadError::HostMemory(shortage)
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
            LoadError::HostMemory(shortage) => shortage.fmt(f),
            LoadError::Threads(error) => write!(f, "a thread could not be started: {error}"),
            LoadError::Hardware(what) => f.write_str(what),
            LoadError::Device(what) => write!(f, "the device failed while loading: {what}"),
            LoadError::Offload(what) => write!(f, "K/V blocks cannot be kept on disk: {what}"),
            LoadError::Calibration(what) => {
                write!(f, "--kv-calibration-tokens: scales of keys and values cannot be measured: {what}")
            }
            LoadError::Rank { rank, ordinal, error } => write!(f, "rank {rank} (GPU {ordinal}): {error}"),
            LoadError::NoPacking => f.write_str(
                "files of packed weights are for servers of CPUs; this one packs a checkpoint whenever it loads it",
            ),
        }
    }
}

impl std::error::Error for LoadError {}

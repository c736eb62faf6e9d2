//! The one contract between generated and hand-written code.
//!
//! A generated layer stack implements [`Model`]; the engine and every verb of the server are generic over
//! it. Nothing here knows a model, a format or a card: what a stack is, it says in [`ModelSpec`].

mod spec;
mod step;

pub use spec::{ClassFormat, Figures, HardwareSpec, ModelSpec, Protocol, SamplingPreset, TensorSpec};
pub use step::{BlockId, Output, RowOutput, SequenceStep, Slot, Step, StepOutput, Ticket, Tokens};

use monomorph_weights::{Checkpoint, WeightsError};
use std::sync::atomic::{AtomicU64, Ordering};

/// A compiled model with its weights on its device.
///
/// `submit` need not wait for the device; `collect` does. The device runs steps in the order they were
/// submitted, and tickets are collected in that order. One thread, the engine's forward thread, makes all calls.
pub trait Model: Sized + Send + 'static {
    /// Everything the build fixed.
    const SPEC: &'static ModelSpec;

    /// Steps that may be submitted and not collected at one time; at least 1. One whose `submit` computes the
    /// step gains nothing by more than 1 and would compute rows that turn out to be surplus; one whose
    /// `submit` only starts it says 2, so that its device need not wait for the host between two steps.
    const STEPS_IN_FLIGHT: usize = 1;

    /// Claims memory and loads the weights.
    ///
    /// # Errors
    /// When the checkpoint's tensors are not the ones this stack was compiled for, or memory is short.
    fn load(checkpoint: &Checkpoint, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError>;

    /// Starts one batched forward step. The caller may change `step` as soon as this returns.
    fn submit(&mut self, step: &Step) -> Ticket;

    /// Waits for a step and returns what it produced, one row per sequence of the step, in its order.
    fn collect(&mut self, ticket: Ticket) -> StepOutput;
}

/// What a start of the server decides about memory and threads.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// K/V blocks to claim, each of [`ModelSpec::block_tokens`] tokens over all layers.
    pub blocks: usize,
    /// Threads of the CPU team; ignored by devices that have none.
    pub threads: usize,
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
    },
    /// The system refuses a thread of the CPU team.
    Threads(std::io::Error),
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
            LoadError::Memory { what, needed, available } => {
                write!(f, "{what} needs {needed} bytes, and {available} are available")
            }
            LoadError::Threads(error) => write!(f, "a thread of the CPU team could not be started: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

//! The contract of [`monomorph_model`], implemented once for every layer stack of a CUDA device.

use super::fault::Fault;
use super::gpu::Gpu;
use super::load::Loader;
use super::memory::{Memory, Needs, Pointer};
use super::rotary;
use super::steps::{Programs, Sets, Steps};
use monomorph_model::{
    BlockId, LoadError, LoadOptions, ModelSpec, OffloadRoom, OffloadSlot, Progress, StatePlace, Step,
    StepOutput, Ticket, Weights,
};

/// A layer stack, as the compiler writes it: weights, what layers keep, activations, and the programs of
/// launches over them.
pub trait Stack: Programs + Sized {
    /// Everything the build fixed.
    const SPEC: &'static ModelSpec;

    /// Bytes it takes.
    const NEEDS: Needs;

    /// The bytes of each part of a K/V block, with the numbers of all parts that have as many: see
    /// [`Memory::claim`].
    const PARTS: &'static [(usize, &'static [usize])];

    /// What is recorded, in ascending order of sequences, those that verify apart.
    const DECODE: &'static [Decode];

    /// Its kernels.
    type Kernels;

    /// Loads the kernels: before memory is claimed, as they take some of it.
    ///
    /// # Errors
    /// When the device refuses one.
    fn kernels(gpu: &Gpu) -> Result<Self::Kernels, Fault>;

    /// Takes what it works in and what layers keep, then has the weights loaded.
    ///
    /// # Errors
    /// When a tensor is missing or not of its shape and format, or the device fails.
    fn load(kernels: Self::Kernels, into: Loading) -> Result<Self, LoadError>;

    /// Where the head leaves its rows of logits.
    fn logits(&self) -> Pointer;
}

/// A decode program.
#[derive(Clone, Copy, Debug)]
pub struct Decode {
    /// What faults call it.
    pub name: &'static str,
    /// Most sequences that it takes.
    pub sequences: usize,
    /// Rows of each.
    pub tokens: usize,
    /// What faults call the passes that draft behind it, if there are some.
    pub drafts: Option<&'static str>,
}

/// What a stack is loaded from and into.
#[derive(Debug)]
pub struct Loading<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// Its memory.
    pub memory: &'a mut Memory,
    /// Where the weights come from.
    pub weights: &'a Weights,
    /// What the start of the server decided.
    pub options: &'a LoadOptions,
    /// How far loading has come.
    pub progress: &'a Progress,
}

impl<'a> Loading<'a> {
    /// What loads the weights. Behind everything else that is taken from the memory.
    ///
    /// # Errors
    /// See [`Loader::new`].
    pub fn loader(self, spec: &ModelSpec) -> Result<Loader<'a>, LoadError> {
        Loader::new(self.gpu, self.memory, self.weights, spec, self.options, self.progress)
    }

    /// The table of rotary angles of all positions: f32 `[positions][pairs][cosine, sine]`, `factor`
    /// multiplied in.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rotary(&mut self, inverse_frequencies: &[f32], factor: f32) -> Result<Pointer, Fault> {
        rotary::load(self.gpu.stream(), self.memory, inverse_frequencies, factor, self.options.threads)
    }
}

/// A layer stack that is loaded, and the steps on their way through it.
pub struct Model<S: Stack> {
    // Dropped first: it waits for what is under way.
    steps: Steps,
    stack: S,
    memory: Memory,
}

impl<S: Stack> monomorph_model::Model for Model<S> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = Sets::of(S::SPEC).steps;
    const SPLIT_SAMPLING: bool = true;

    fn check_hardware() -> Result<(), LoadError> {
        Gpu::check(S::SPEC)
    }

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        let gpu = Gpu::open(S::SPEC)?;
        let kernels = S::kernels(&gpu)?;
        let mut memory = Memory::claim(&gpu, S::SPEC, options, &S::NEEDS, S::PARTS)?;
        let stack = S::load(kernels, Loading { gpu: &gpu, memory: &mut memory, weights, options, progress })?;
        let mut steps = Steps::new(&gpu, S::SPEC, &mut memory, stack.logits(), S::HEAD_ROWS)?;
        for (at, program) in S::DECODE.iter().enumerate() {
            let Decode { name, sequences, tokens, drafts } = *program;
            steps.record(name, sequences, tokens, |queue| stack.decode(at, queue))?;
            if let Some(name) = drafts {
                steps.record_drafts(name, sequences, |queue| stack.draft(at, queue))?;
            }
        }
        Ok(Model { steps, stack, memory })
    }

    fn blocks(&self) -> usize {
        self.memory.blocks()
    }

    fn sequences(&self) -> usize {
        self.memory.states().sequences
    }

    fn snapshots(&self) -> usize {
        // A stack without recurrent state has none, whoever asks for some.
        if S::SPEC.state_bytes > 0 { self.memory.states().snapshots } else { 0 }
    }

    fn far(&self) -> Option<OffloadRoom> {
        self.steps.far()
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.steps.offload_blocks(blocks, to)
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.steps.read_block(block, into);
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.steps.write_block(block, from);
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        self.steps.read_state(place, into);
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        self.steps.write_state(place, from);
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        self.steps.submit(&self.stack, step)
    }

    fn sample(&mut self, step: &Step) {
        self.steps.sample(&self.stack, step);
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.steps.collect(ticket)
    }
}

//! The implementation of [`monomorph_model::Model`] for all layer stacks of CUDA devices.

use super::executor::{Executor, Head, Programs, Tower};
use super::fault::Fault;
use super::gpu::Gpu;
use super::load::Loader;
use super::memory::{Memory, Needs};
use super::pointer::{Cache, Pointer};
use super::ring::SlotRing;
use super::rotary;
use super::slice::Share;
use super::static_scales::{Scaled, StaticScales};
use super::world::{Exchange, Gathered, WorldMemory};
use monomorph_abi::world::Traffic;
use monomorph_formats::cached::Cached;
use monomorph_model::{
    BlockId, FeatureSlot, KvScaleSpec, KvScales, LoadError, LoadOptions, ModelSpec, OffloadRoom, OffloadSlot,
    ProfileSpec, Progress, RankMeter, Shown, SlidingId, SlidingSpec, StatePlace, Step, StepOutput, Ticket,
    TimedRow, VisionSpec, Weights,
};
use monomorph_world::{Rank, Seat};
use std::ops::Range;
use std::sync::Arc;

/// A generated layer stack: weights, K/V and recurrent state, activations, and the programs of launches over
/// them.
pub trait Stack: Programs + Sized {
    /// What the build fixed.
    const SPEC: &'static ModelSpec;

    /// Its layers with a sliding window, if they give back blocks behind it.
    const SLIDING: Option<SlidingSpec> = None;

    /// Its vision tower, if it was built with one. Then it has [`Self::pixels`] and [`Self::image_rows`],
    /// too.
    const VISION: Option<VisionSpec> = None;

    /// Most patches of a side of an image.
    const MOST_SIDE: usize = 0;

    /// Memory that the stack takes.
    const NEEDS: Needs;

    /// The sizes of the parts of a K/V block, each with the numbers of all parts of that size: see
    /// [`Memory::claim`].
    const PARTS: &'static [(usize, &'static [usize])];

    /// The decode programs to record, in ascending order of sequences; those that verify drafts have an order
    /// of their own.
    const DECODE: &'static [Decode];

    /// Ranks that the model is spread over, a GPU each; the stack is the part of any one of them.
    const RANKS: usize = 1;

    /// What its programs exchange with other ranks.
    const TRAFFIC: Traffic = Traffic::NONE;

    /// The stack's kernels.
    type Kernels;

    /// Loads the kernels. Called before memory is claimed, because kernels take some of it.
    ///
    /// # Errors
    /// When the device refuses one.
    fn kernels(gpu: &Gpu) -> Result<Self::Kernels, Fault>;

    /// Takes memory for activations, K/V and recurrent state, then loads the weights.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or format, or the device fails.
    fn load(kernels: Self::Kernels, into: Loading) -> Result<Self, LoadError>;

    /// Where the head writes its rows of logits.
    fn logits(&self) -> Pointer;

    /// Where the tower takes pixels, a row a patch.
    fn pixels(&self) -> Pointer {
        Pointer::NULL
    }

    /// Where rows of images are kept: of slot, then of the image's own or a tap, then of token.
    fn image_rows(&self) -> Pointer {
        Pointer::NULL
    }

    /// What ranks exchange partial sums and logits through; `None` of a stack that is alone.
    fn world(&self) -> Option<WorldMemory> {
        None
    }

    /// What a rank that is a process gathers rows of all ranks in.
    fn gathered(&self) -> Option<Gathered> {
        None
    }
}

/// A decode program.
#[derive(Clone, Copy, Debug)]
pub struct Decode {
    /// Its name in faults.
    pub name: &'static str,
    /// Most sequences it takes.
    pub sequences: usize,
    /// Token rows per sequence.
    pub tokens: usize,
    /// The name in faults of the draft passes that follow it, if any.
    pub drafts: Option<&'static str>,
}

/// The source and destination of a stack's loading.
#[derive(Debug)]
pub struct Loading<'a> {
    /// The device to load onto.
    pub gpu: &'a Gpu,
    /// The device's memory.
    pub memory: &'a mut Memory,
    /// The source of the weights.
    pub weights: &'a Weights,
    /// The options of the server's start.
    pub options: &'a LoadOptions,
    /// Updated as weights are loaded.
    pub progress: &'a Progress,
    /// The rank, among all.
    pub(crate) share: Share,
}

impl<'a> Loading<'a> {
    /// A loader for the weights. Called after everything else has been taken from the memory.
    ///
    /// # Errors
    /// See [`Loader::new`].
    pub fn loader(self, spec: &ModelSpec) -> Result<Loader<'a>, LoadError> {
        Loader::new(self.gpu, self.memory, (self.weights, self.share), spec, self.options, self.progress)
    }

    /// The table of rotary angles for all positions: f32 `[positions][pairs][cosine, sine]`, multiplied by
    /// `factor`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rotary(&mut self, inverse_frequencies: &[f32], factor: f32) -> Result<Pointer, Fault> {
        rotary::load(self.gpu.stream(), self.memory, inverse_frequencies, factor, self.options.threads)
    }

    /// Fills the table of angles of a tower's patches: f32 `[places][pairs][cosine, sine]`, of rows and
    /// columns from 0.
    ///
    /// # Errors
    /// When the device fails.
    pub fn patch_angles(
        &mut self,
        at: Pointer,
        inverse_frequencies: &[f32],
        places: usize,
    ) -> Result<(), Fault> {
        rotary::fill(self.gpu.stream(), at, inverse_frequencies, (1.0, places), self.options.threads)
    }

    /// Writes the static scales of a cache of so many heads, whose layers are these of the model: the
    /// checkpoint's, if `spec` names some, or else 1. A draft head has none. `formats` are those of keys and
    /// of values.
    ///
    /// # Errors
    /// When a scale is missing, or is not positive and finite (names the tensor); or the device fails.
    pub fn static_scales(
        &mut self,
        cache: &Cache,
        heads: usize,
        formats: [Cached; 2],
        layers: &[Option<usize>],
        spec: Option<&KvScaleSpec>,
    ) -> Result<(), LoadError> {
        let scaled = Scaled { heads, formats };
        let scales = StaticScales::load(self.gpu.stream(), self.weights, cache, scaled, layers, spec)?;
        self.memory.push_scales(scales);
        Ok(())
    }
}

/// A model of [`Stack::RANKS`] ranks, a GPU each.
pub type World<S> = monomorph_world::World<Model<S>>;

/// A loaded layer stack and its steps: a whole model, or a rank of one.
pub struct Model<S: Stack> {
    // Dropped first: waits for steps in flight.
    pub(super) steps: Executor,
    pub(super) stack: S,
    memory: Memory,
}

impl<S: Stack> Model<S> {
    /// Claims memory and loads weights, before programs are recorded.
    pub(super) fn load_stack(
        weights: &Weights,
        options: &LoadOptions,
        progress: &Progress,
        seat: Seat,
    ) -> Result<(Self, Gpu), LoadError> {
        let gpu = Gpu::open(S::SPEC, seat.ordinal())?;
        gpu.reach(seat)?;
        let kernels = S::kernels(&gpu)?;
        let mut memory =
            Memory::claim(&gpu, S::SPEC, options, &S::NEEDS, S::PARTS, (S::SLIDING, S::VISION), seat)?;
        let share = Share { rank: seat.rank(), ranks: seat.ranks() };
        let into = Loading { gpu: &gpu, memory: &mut memory, weights, options, progress, share };
        let stack = S::load(kernels, into)?;
        let exchange =
            stack.world().map(|world| Exchange::open(&gpu, world, S::TRAFFIC, seat)).transpose()?;
        let head = Head { logits: stack.logits(), rows: S::HEAD_ROWS };
        let tower = S::VISION.map(|vision| Tower { vision, most_side: S::MOST_SIDE, pixels: stack.pixels() });
        let steps = Executor::new(&gpu, S::SPEC, &mut memory, head, S::RANKS, (S::SLIDING, tower), exchange)?;
        Ok((Model { steps, stack, memory }, gpu))
    }

    /// Records the programs.
    pub(super) fn record(&mut self) -> Result<(), Fault> {
        let (steps, stack) = (&mut self.steps, &self.stack);
        for (at, program) in S::DECODE.iter().enumerate() {
            let Decode { name, sequences, tokens, drafts } = *program;
            steps.record(name, sequences, tokens, |queue| stack.decode(at, queue))?;
            if let Some(name) = drafts {
                steps.record_drafts(name, sequences, |queue| stack.draft(at, queue))?;
            }
        }
        Ok(())
    }
}

impl<S: Stack> monomorph_model::Model for Model<S> {
    const SPEC: &'static ModelSpec = S::SPEC;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
    const PROFILE: Option<&'static ProfileSpec> = S::PROFILE;
    const STEPS_IN_FLIGHT: usize = SlotRing::of(S::SPEC).steps;
    const SPLIT_SAMPLING: bool = true;
    const RANKS: usize = S::RANKS;

    fn check_hardware(ordinals: &[usize]) -> Result<(), LoadError> {
        Gpu::check(S::SPEC, ordinals, S::RANKS)
    }

    fn ordinal_of(uuid: &str) -> Result<usize, LoadError> {
        Gpu::ordinal_of(S::SPEC, uuid)
    }

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        const { assert!(S::RANKS == 1, "ranks are loaded by their World") };
        let ordinals = options.ordinals(1)?;
        Self::load_rank(weights, options, progress, Seat::alone(&ordinals[0]))
    }

    fn blocks(&self) -> usize {
        self.memory.blocks()
    }

    fn sliding_blocks(&self) -> usize {
        self.memory.sliding()
    }

    fn sequences(&self) -> usize {
        self.memory.states().sequences
    }

    fn snapshots(&self) -> usize {
        // A stack without recurrent state has no snapshots, even if some were asked for.
        if S::SPEC.state_bytes > 0 { self.memory.states().snapshots } else { 0 }
    }

    fn offload(&self) -> Option<OffloadRoom> {
        self.steps.offload()
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

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        self.steps.read_sliding(block, into);
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.steps.write_sliding(block, from);
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        self.steps.read_state(place, into);
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        self.steps.write_state(place, from);
    }

    fn measure_kv(&mut self) {
        self.memory.measure().unwrap_or_else(|fault| panic!("{fault}"));
    }

    fn set_kv_scales(&mut self) -> Result<KvScales, String> {
        self.memory.set_scales()
    }

    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        self.steps.see(&self.stack, images, layers)
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

    fn time_phases(&mut self, on: bool) -> Vec<TimedRow> {
        self.steps.time_launches(on)
    }
}

impl<S: Stack> Model<S> {
    /// The row of a token of the image in a slot: the tower's, or a tap's. For tests; no step is in flight.
    ///
    /// # Panics
    /// When there is none, or no tower, or the device fails.
    pub fn image_row(&mut self, slot: FeatureSlot, token: usize, tap: Option<usize>) -> Vec<f32> {
        let vision = S::VISION.expect("a model without a vision tower has no rows of images");
        let part = slot.0 as usize * (1 + vision.taps) + tap.map_or(0, |tap| 1 + tap);
        let (row, bytes) = (part * vision.most_tokens() + token, 4 * S::SPEC.hidden as u64);
        self.steps.values(self.stack.image_rows().offset(row as u64 * bytes), bytes)
    }
}

impl<S: Stack> Rank for Model<S> {
    fn load_rank(
        weights: &Weights,
        options: &LoadOptions,
        progress: &Progress,
        seat: Seat,
    ) -> Result<Self, LoadError> {
        let (mut model, _) = Self::load_stack(weights, options, progress, seat)?;
        model.record()?;
        let trial = model.steps.record_exchange(&model.stack)?;
        // A rank that still loads kernels or claims memory could wait for its device, while that polls for
        // what another rank was to send.
        seat.meet("recorded programs")?;
        if let Some(trial) = trial {
            model.steps.time_exchange(&trial)?;
            seat.meet("a timed exchange")?;
        }
        Ok(model)
    }

    fn meter(&self) -> Arc<RankMeter> {
        self.steps.meter()
    }
}

//! The implementation of [`monomorph_model::Model`] for all layer stacks of CPUs.

use super::arrays::Mapped;
use super::batch::Batch;
use super::draft::{Behind, Drafts};
use super::keeps::Keeps;
use super::kv_offload::KvOffload;
use super::loader::Loader;
use super::outputs::Outputs;
use super::rows::Rows;
use super::shape::BatchLimits;
use super::team::{Lane, Team};
use super::times::PhaseTimes;
use super::vision::Patches;
use monomorph_model::{
    BlockId, FeatureSlot, KvScales, LoadError, LoadOptions, ModelSpec, OffloadRoom, OffloadSlot, ProfileSpec,
    Progress, Shown, SlidingId, SlidingSpec, StatePlace, States, Step, StepOutput, Ticket, TimedRow,
    VisionSpec, Weights,
};
use monomorph_weights::{Checkpoint, Packed, Packing, WeightsError};
use std::cell::OnceCell;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A generated layer stack: weights, K/V and recurrent state, activations, and the phases over them. Its
/// logits have `VOCABULARY` columns, and its steps verify `DRAFTS` drafts of a sequence.
pub trait Stack<const VOCABULARY: usize, const DRAFTS: usize>: Sized + Send + Sync + 'static {
    /// What the build fixed.
    const SPEC: &'static ModelSpec;

    /// Its layers with a sliding window, if it has some.
    const SLIDING: Option<SlidingSpec> = None;

    /// Its vision tower, if it was built with one. Then it also has the four functions at the end.
    const VISION: Option<VisionSpec> = None;

    /// The steps whose phases it times, of a profiling build. Then it has [`Self::clock`], too.
    const PROFILE: Option<&'static ProfileSpec> = None;

    /// The parts of a K/V block that the layers attend to, but for those with a sliding window.
    const PARTS: Range<usize>;

    /// The part of a step after its logits: `()` for a stack that does not draft.
    type Drafts: Drafts<Self, DRAFTS>;

    /// Loads the weights, and claims memory for K/V, recurrent state and activations.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or format, or memory is short.
    fn load(loader: &Loader, checkpoint: &Checkpoint, room: Room) -> Result<Self, LoadError>;

    /// The state of its layers, in the order of bodies, followed by that of a draft head.
    fn keeps(&mut self) -> impl Keeps;

    /// From token ids to the last layer's residual stream.
    fn forward(&self, lane: &Lane, batch: &Batch);

    /// Computes the logits of `rows` of the residual stream.
    fn head(&self, lane: &Lane, rows: &[u32]);

    /// The logits that [`Self::head`] computed.
    fn logits(&mut self) -> &mut Rows<VOCABULARY>;

    /// Where the pixels of a patch go.
    fn pixels(&mut self, _patch: usize) -> &mut [f32] {
        unreachable!("{NO_TOWER}")
    }

    /// Runs layers of the tower over an image. The first begin with embedding its pixels, which are there,
    /// and the last keep the rows of its tokens in a slot: those of the last layer, then those of each tap.
    fn see(&self, _lane: &Lane, _patches: &Patches, _slot: usize, _layers: Range<usize>) {
        unreachable!("{NO_TOWER}")
    }

    /// The times of its phases.
    fn clock(&self) -> Option<&PhaseTimes> {
        None
    }

    /// A row that is kept: of slot, then of the image's own or a tap, then of token.
    fn image_row(&mut self, _row: usize) -> &[f32] {
        unreachable!("{NO_TOWER}")
    }
}

/// Why a stack without a tower is never asked for what only towers have.
const NO_TOWER: &str = "a model without a vision tower is not asked to see";

/// The room that a stack claims.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// K/V blocks.
    pub blocks: usize,
    /// K/V blocks of layers with a sliding window.
    pub sliding: usize,
    /// Recurrent states.
    pub states: States,
    /// Lanes of the team.
    pub lanes: usize,
}

/// A build's model and quantisation. Which CPU it is for is not in packed weights.
fn build_of(spec: &ModelSpec) -> &str {
    spec.target.split_once('/').map_or(spec.target, |(_, build)| build)
}

/// The checkpoint, which may be `made_up`.
fn opened<'a>(weights: &'a Weights, made_up: &'a OnceCell<Checkpoint>) -> &'a Checkpoint {
    match weights {
        Weights::Checkpoint(checkpoint) => checkpoint,
        Weights::Dummy { seed } => made_up.get_or_init(|| Checkpoint::made_up(*seed)),
    }
}

/// A loaded layer stack and the threads that run it.
pub struct Model<S: Stack<VOCABULARY, DRAFTS>, const VOCABULARY: usize, const DRAFTS: usize> {
    team: Team,
    offload: KvOffload,
    batch: Batch,
    outputs: Outputs<DRAFTS>,
    drafts: S::Drafts,
    stack: S,
    /// Snapshots of recurrent state.
    snapshots: usize,
    /// K/V blocks of layers with a sliding window.
    sliding: usize,
    /// The patches that the tower works on.
    patches: Patches,
}

impl<S: Stack<VOCABULARY, DRAFTS>, const VOCABULARY: usize, const DRAFTS: usize> monomorph_model::Model
    for Model<S, VOCABULARY, DRAFTS>
{
    const SPEC: &'static ModelSpec = S::SPEC;
    const SLIDING: Option<SlidingSpec> = S::SLIDING;
    const VISION: Option<VisionSpec> = S::VISION;
    const PROFILE: Option<&'static ProfileSpec> = S::PROFILE;

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        let made_up = OnceCell::new();
        let (spec, checkpoint) = (S::SPEC, opened(weights, &made_up));
        let blocks = options.blocks_or_one_sequence(spec.block_tokens);
        let states = options.states(spec);
        let sliding = S::SLIDING.map_or(0, |it| {
            it.blocks(spec, blocks, states.sequences, options.context, options.offload.is_some())
        });
        let mapped = checkpoint.packed().map(|packed| Mapped::open(packed, build_of(spec))).transpose()?;
        checkpoint.refuse_surplus(|name| spec.knows(name))?;
        progress.expect(checkpoint.packed().map_or(spec.weight_bytes, Packed::array_bytes));
        let team = Team::new(options.threads).map_err(LoadError::Threads)?;
        let watch = options.guard.watch();
        let loader = Loader::new(&team, checkpoint.path(), progress).watched(&watch);
        let loader = mapped.as_ref().map_or(loader, |mapped| loader.mapping(mapped));
        let mut stack = S::load(&loader, checkpoint, Room { blocks, sliding, states, lanes: team.lanes() })?;
        mapped.as_ref().map_or(Ok(()), Mapped::finish)?;
        let mut parts = Vec::new();
        stack.keeps().parts(&mut parts);
        let offload =
            KvOffload::open(options.offload.as_ref(), blocks, spec.block_tokens, &parts, options.report)?;
        stack.keeps().stream(&offload);
        let limits = BatchLimits {
            tokens: spec.step_tokens,
            sequences: states.sequences,
            vocabulary: spec.vocabulary,
            context: spec.context,
            block_tokens: spec.block_tokens,
            blocks,
        };
        let slides = S::SLIDING.map(|it| (it.of(spec), sliding));
        let batch =
            Batch::new(limits).streamed(&offload).ahead(spec.ahead(DRAFTS)).slides(slides).sees(S::VISION);
        let (outputs, drafts) = (Outputs::default(), S::Drafts::new(limits));
        // A stack without recurrent state has no snapshots, even if some were asked for.
        let snapshots = if spec.state_bytes > 0 { states.snapshots } else { 0 };
        let patches = Patches::new(
            S::VISION.map_or(1, |vision| vision.merge),
            S::VISION.map_or(0, |vision| vision.most_patches),
        );
        Ok(Model { team, offload, batch, outputs, drafts, stack, snapshots, sliding, patches })
    }

    fn pack(
        weights: &Weights,
        to: &Path,
        by: &str,
        threads: usize,
        progress: &Progress,
    ) -> Result<u64, LoadError> {
        let made_up = OnceCell::new();
        let (spec, checkpoint) = (S::SPEC, opened(weights, &made_up));
        if checkpoint.packed().is_some() {
            let what = "holds weights that are packed already".to_owned();
            return Err(WeightsError::Mismatch { path: checkpoint.path().to_owned(), what }.into());
        }
        checkpoint.refuse_surplus(|name| spec.knows(name))?;
        progress.expect(spec.weight_bytes);
        let team = Team::new(threads).map_err(LoadError::Threads)?;
        let wanted = |name: &str| spec.kv_scales.is_some_and(|scales| scales.knows(name));
        let packing =
            Mutex::new(Packing::begin(to, checkpoint, (build_of(spec), by), spec.tensor_count(), &wanted)?);
        let loader = Loader::new(&team, checkpoint.path(), progress).writing(&packing);
        let (states, lanes) = (States { sequences: 1, snapshots: 0 }, team.lanes());
        // What it claims besides weights is never touched, and so takes no memory.
        drop(S::load(&loader, checkpoint, Room { blocks: 1, sliding: 1, states, lanes })?);
        checkpoint.check_unchanged()?;
        Ok(packing.into_inner().unwrap_or_else(PoisonError::into_inner).finish()?)
    }

    fn blocks(&self) -> usize {
        self.batch.limits().blocks
    }

    fn sliding_blocks(&self) -> usize {
        self.sliding
    }

    fn sequences(&self) -> usize {
        self.batch.limits().sequences
    }

    fn snapshots(&self) -> usize {
        self.snapshots
    }

    fn offload(&self) -> Option<OffloadRoom> {
        self.offload.room()
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        self.stack.keeps().offload_blocks(blocks, to)
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        let left = self.stack.keeps().read_block(block, into);
        assert!(left.is_empty(), "more than a block was asked for");
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        let left = self.stack.keeps().write_block(block, from);
        assert!(left.is_empty(), "more than a block was given");
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        let left = self.stack.keeps().read_sliding(block, into);
        assert!(left.is_empty(), "more than a block was asked for");
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        let left = self.stack.keeps().write_sliding(block, from);
        assert!(left.is_empty(), "more than a block was given");
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        let left = self.stack.keeps().read_state(place, into);
        assert!(left.is_empty(), "more than a state was asked for");
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        let left = self.stack.keeps().write_state(place, from);
        assert!(left.is_empty(), "more than a state was given");
    }

    fn measure_kv(&mut self) {
        self.stack.keeps().measure();
    }

    fn set_kv_scales(&mut self) -> Result<KvScales, String> {
        let mut set = KvScales::default();
        self.stack.keeps().set_scales(&mut set)?;
        Ok(set)
    }

    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        let Model { team, outputs, stack, patches, .. } = self;
        let vision = S::VISION.expect(NO_TOWER);
        let [Shown { patches: image, slot }] = images else {
            panic!("{} images, and a pass of a CPU takes one", images.len());
        };
        assert!((slot.0 as usize) < vision.slots, "there is no {slot:?}");
        patches.fill(image.grid);
        let (count, values) = (patches.count(), vision.values);
        assert!(
            image.pixels.len() == count * values,
            "{} numbers are not {values} a patch of {count}",
            image.pixels.len()
        );
        assert!(vision.has(&layers), "there are no layers {layers:?}");
        if layers.start == 0 {
            for (patch, pixels) in image.pixels.chunks_exact(values).enumerate() {
                stack.pixels(patch).copy_from_slice(pixels);
            }
        }
        team.pin_caller();
        team.run(|lane| stack.see(lane, patches, slot.0 as usize, layers.clone()));
        outputs.begin(&Step::default());
        outputs.end()
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        let Model { team, offload, batch, outputs, drafts, stack, .. } = self;
        team.pin_caller();
        for copy in &step.copies {
            stack.keeps().copy(copy);
        }
        batch.fill(step, outputs);
        offload.begin(step, batch, S::PARTS);
        team.run(|lane| stack.forward(lane, batch));
        outputs.begin(step);
        let mut first = 0;
        while first < batch.outputs().len() {
            let last = batch.outputs().len().min(first + S::SPEC.step_sequences);
            team.run(|lane| stack.head(lane, &batch.outputs()[first..last]));
            outputs.take(team, step, batch, first..last, stack.logits());
            first = last;
        }
        drafts.follow(step, Behind { team, offload, batch, stack, outputs });
        offload.end(step, outputs);
        outputs.end()
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.outputs.collect(ticket)
    }

    fn time_phases(&mut self, on: bool) -> Vec<TimedRow> {
        self.stack.clock().expect("only a profiling build takes times").take(on)
    }
}

impl<S: Stack<VOCABULARY, DRAFTS>, const VOCABULARY: usize, const DRAFTS: usize>
    Model<S, VOCABULARY, DRAFTS>
{
    /// The row of a token of the image in a slot: the tower's, or a tap's. For tests.
    ///
    /// # Panics
    /// When there is none, or no tower.
    pub fn image_row(&mut self, slot: FeatureSlot, token: usize, tap: Option<usize>) -> &[f32] {
        let vision = S::VISION.expect(NO_TOWER);
        let part = slot.0 as usize * (1 + vision.taps) + tap.map_or(0, |tap| 1 + tap);
        self.stack.image_row(part * vision.most_tokens() + token)
    }
}

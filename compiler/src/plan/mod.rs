//! What runs, in which order, over which bytes: everything an emitter needs, and no decision left to it.

mod cost;
pub mod cuda;
mod draft;
mod field;
mod figures;
mod keeps;
pub mod packed;
mod work;

pub use cost::{Cost, Prediction, touched_experts};
pub use draft::{DraftLayers, DraftPlan, Speculation};
pub use field::{Field, FieldKind, Part};
pub use keeps::{Keeps, KvHeads, State, StatePart};
pub use packed::Packing;
pub use work::{Given, Work};

pub use crate::blocks::{PhaseKind, SharedDown, SharedUp};

use crate::graph::{BodyId, Rows};
use crate::passes::buckets::Buckets;
use crate::spec::types::Target;
use std::ops::Deref;

/// Index into [`Plan::fields`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldId(pub usize);

/// Index into [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// What runs for one target, and where its operands stand: `P` is what is known of each phase.
#[derive(Clone, Debug)]
pub struct Structure<P> {
    /// What it is planned for.
    pub target: Target,
    /// What a step may carry.
    pub buckets: Buckets,
    /// Activations.
    pub buffers: Vec<Buffer>,
    /// Weights as they stand in memory.
    pub fields: Vec<Field>,
    /// The distinct pieces: the model's, and behind them those that only draft passes run.
    pub bodies: Vec<PlanBody<P>>,
    /// Order of the model's: body, and layer where it has one.
    pub schedule: Vec<(BodyId, Option<usize>)>,
    /// The passes that follow the schedule, where the stack drafts itself.
    pub draft: Option<DraftPlan>,
}

/// Ops have become phases over fields and buffers. How often kernels are launched is not known yet, nor what
/// that costs.
pub type Lowered = Structure<LoweredPhase>;

/// Phases have become launches, where the hardware is a CUDA device.
#[derive(Clone, Debug)]
pub struct Launched {
    /// With as many rows to every buffer as launches give it.
    pub(crate) lowered: Lowered,
    /// The launches.
    pub(crate) cuda: Option<cuda::CudaPlan>,
    /// By body and phase.
    pub(crate) boundaries: Vec<Vec<Boundaries>>,
}

/// Boundaries that a phase costs: loop nests on a CPU, launches on a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Boundaries {
    /// In a step of one token.
    pub decode: f64,
    /// In a step that verifies.
    pub verify: f64,
    /// In a prompt.
    pub prefill: f64,
}

/// A planned forward pass for one target. Whoever holds one knows that every phase has been lowered, launched
/// and counted.
#[derive(Clone, Debug)]
pub struct Plan {
    structure: Structure<Phase>,
    /// Bytes by purpose.
    pub memory: Memory,
    /// What HARDWARE.toml's figures say it should do.
    pub prediction: Prediction,
    /// And of a step that verifies drafts, where there are some.
    pub speculation: Option<Speculation>,
    /// The launches, where the hardware is a CUDA device.
    pub cuda: Option<cuda::CudaPlan>,
}

impl Deref for Plan {
    type Target = Structure<Phase>;

    fn deref(&self) -> &Structure<Phase> {
        &self.structure
    }
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Weights after packing.
    pub weights: u64,
    /// Activation buffers at the largest step, and what kernels work in.
    pub scratch: u64,
    /// One K/V block over all layers.
    pub kv_block: u64,
    /// Recurrent state of one sequence over all layers.
    pub state: u64,
}

/// A buffer of f32 activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Field name in the generated struct.
    pub name: String,
    /// Number of rows.
    pub rows: Rows,
    /// Most rows any step gives it; 0 where no kernel touches it.
    pub most: usize,
    /// Columns.
    pub width: usize,
}

impl Buffer {
    /// Bytes at the largest step.
    pub fn bytes(&self) -> u64 {
        4 * (self.most * self.width) as u64
    }
}

/// A body as phases.
#[derive(Clone, Debug)]
pub struct PlanBody<P = Phase> {
    /// The graph's name for it.
    pub name: String,
    /// The layers that run it; empty for one outside the layers.
    pub layers: Vec<usize>,
    /// In execution order.
    pub phases: Vec<P>,
}

/// A group of ops over fields and buffers.
#[derive(Clone, Debug)]
pub struct LoweredPhase {
    /// Unique in its body.
    pub name: String,
    /// What it does over what.
    pub kind: PhaseKind,
    /// The ops it covers, for people.
    pub ops: Vec<&'static str>,
    /// Earlier phases of the body whose results it reads.
    pub waits_for: Vec<usize>,
}

/// One CPU loop nest, or one or more kernel launches, and what they cost.
#[derive(Clone, Debug)]
pub struct Phase {
    lowered: LoweredPhase,
    /// One token after [`Prediction::DECODE_CONTEXT`] others.
    pub decode: Cost,
    /// A token and the drafts after it, all of which are to be sampled after, that follow as many others; of
    /// a draft head's phases, the first pass. As `decode` where nothing is drafted.
    pub verify: Cost,
    /// [`Prediction::PREFILL_TOKENS`] tokens of one prompt.
    pub prefill: Cost,
}

impl Deref for Phase {
    type Target = LoweredPhase;

    fn deref(&self) -> &LoweredPhase {
        &self.lowered
    }
}

impl AsRef<LoweredPhase> for Phase {
    fn as_ref(&self) -> &LoweredPhase {
        &self.lowered
    }
}

impl AsRef<LoweredPhase> for LoweredPhase {
    fn as_ref(&self) -> &LoweredPhase {
        self
    }
}

impl<P: AsRef<LoweredPhase>> Structure<P> {
    /// Drafts that a step verifies of a sequence; 0 where there are none.
    pub fn drafts(&self) -> usize {
        self.target.draft.map_or(0, |draft| draft.drafts)
    }

    /// The first matrix that a body multiplies by.
    pub fn first_matrix(&self, body: &PlanBody<P>) -> Option<FieldId> {
        body.phases.iter().find_map(|phase| phase.as_ref().kind.kind().streams())
    }

    /// For each layer of a body in order, the first matrix that the schedule reads behind it: whose it is,
    /// which of its body's layers that is, and the matrix.
    pub fn following(&self, body: BodyId) -> Vec<(BodyId, usize, FieldId)> {
        let places: Vec<(BodyId, usize)> = self.places().collect();
        let of = |at: usize| {
            let mut behind = places[at + 1..].iter();
            behind.find_map(|it| Some((it.0, it.1, self.first_matrix(&self.bodies[it.0.0])?)))
        };
        (0..places.len()).filter(|at| places[*at].0 == body).filter_map(of).collect()
    }

    /// The schedule as bodies and which of their layers; 0 where a body has none.
    pub fn places(&self) -> impl Iterator<Item = (BodyId, usize)> {
        self.schedule.iter().map(|(body, layer)| {
            let layers = &self.bodies[body.0].layers;
            let at = layer.and_then(|layer| layers.iter().position(|it| *it == layer));
            (*body, at.unwrap_or(0))
        })
    }

    /// The model's last body, which makes the logits.
    pub fn head(&self) -> BodyId {
        self.schedule.last().expect("a graph ends with its head").0
    }

    /// The buffer of the model's logits.
    pub fn logits(&self) -> BufferId {
        let phases = &self.bodies[self.head().0].phases;
        phases.last().expect("a head ends with its logits").as_ref().kind.result()
    }

    /// The field.
    pub fn field(&self, id: FieldId) -> &Field {
        &self.fields[id.0]
    }

    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// Instances of a field: one a layer of its owner, or one.
    pub fn instances(&self, field: &Field) -> usize {
        field.owner.map_or(1, |owner| self.bodies[owner.0].layers.len())
    }
}

//! The plan: what runs, in what order, over which bytes. It holds everything an emitter needs and leaves it
//! no decision.

mod block;
mod buckets;
mod cost;
pub mod cuda;
mod draft;
mod field;
mod figures;
mod id;
mod keeps;
pub mod packed;
pub mod profile;
mod tower;
pub mod traffic;
mod work;

pub use block::BlockPlan;
pub use buckets::Buckets;
pub use cost::{Cost, Prediction, touched_experts, touched_experts_of_busiest};
pub use draft::{DraftLayers, DraftPlan, Speculation};
pub use field::{Field, FieldKind, NO_HEADS, TensorPart};
pub use id::{BufferId, FieldId};
pub use keeps::{Keeps, KvHeads, State, StatePart};
pub use packed::Packing;
pub use tower::TowerPlan;
pub use work::{Given, Work};

pub use crate::blocks::PhaseKind;

use crate::graph::{BodyId, Rows};
use crate::spec::types::Target;
use std::ops::Deref;

/// The phases and operands of one target. `P` is what is known about each phase.
#[derive(Clone, Debug)]
pub struct Structure<P> {
    /// The target it is planned for.
    pub target: Target,
    /// Limits of a step.
    pub buckets: Buckets,
    /// Activation buffers.
    pub buffers: Vec<Buffer>,
    /// Weights as they are stored in memory.
    pub fields: Vec<Field>,
    /// The distinct bodies: the model's, those that only draft passes or a drafter run, then those of a
    /// tower.
    pub bodies: Vec<PlanBody<P>>,
    /// Execution order of the model: body, and layer if it has one.
    pub schedule: Vec<(BodyId, Option<usize>)>,
    /// The draft passes that follow the schedule, if the stack drafts itself token by token.
    pub draft: Option<DraftPlan>,
    /// The drafter of blocks, if the stack has one.
    pub block: Option<BlockPlan>,
    /// The vision tower, if the stack takes images.
    pub tower: Option<TowerPlan>,
}

/// Ops have become phases over fields and buffers. The number of launches and their cost are not known yet.
pub type Lowered = Structure<LoweredPhase>;

/// Phases have become launches, if the hardware is a CUDA device.
#[derive(Clone, Debug)]
pub struct Launched {
    pub(crate) lowered: Lowered,
    /// Most rows that any step gives each buffer; 0 if no kernel uses it.
    pub(crate) rows: Vec<usize>,
    /// The launches, on a CUDA device.
    pub(crate) cuda: Option<cuda::CudaPlan>,
    /// Boundaries by body and phase.
    pub(crate) boundaries: Vec<Vec<Boundaries>>,
}

/// Boundaries of a phase: loop nests on a CPU, launches on a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Boundaries {
    /// In a step of one token.
    pub decode: f64,
    /// In a step that verifies drafts.
    pub verify: f64,
    /// In a prompt.
    pub prefill: f64,
}

/// A planned forward pass for one target. Holding one proves that every phase has been lowered, launched and
/// counted: nobody else can make one, or change it.
#[derive(Clone, Debug)]
pub struct Plan(Figures);

/// What a [`Plan`] knows besides its structure.
#[derive(Clone, Debug)]
pub struct Figures {
    structure: Structure<Phase>,
    /// Most rows that any step gives each buffer; 0 if no kernel uses it.
    pub rows: Vec<usize>,
    /// Bytes by purpose.
    pub memory: Memory,
    /// Speed predicted from HARDWARE.toml's figures.
    pub prediction: Prediction,
    /// Prediction for a step that verifies drafts, if there are any.
    pub speculation: Option<Speculation>,
    /// The launches, on a CUDA device.
    pub cuda: Option<cuda::CudaPlan>,
}

impl Plan {
    /// The plan with other launches. Figures and launches may contradict each other: for tests that plant a
    /// defect and expect a build to fail.
    pub fn planted(self, plant: impl FnOnce(&mut cuda::CudaPlan)) -> Plan {
        let Plan(mut figures) = self;
        if let Some(cuda) = &mut figures.cuda {
            plant(cuda);
        }
        Plan(figures)
    }
}

impl Deref for Plan {
    type Target = Figures;

    fn deref(&self) -> &Figures {
        &self.0
    }
}

impl Deref for Figures {
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
    /// Activation buffers at the largest step, and the kernels' scratch.
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
    /// Columns of a row.
    pub width: usize,
}

/// A body as phases.
#[derive(Clone, Debug)]
pub struct PlanBody<P = Phase> {
    /// The graph's name for it.
    pub name: String,
    /// The layers that run it; empty for one outside the layers.
    pub layers: Vec<usize>,
    /// Phases in execution order.
    pub phases: Vec<P>,
}

/// A group of ops over fields and buffers.
#[derive(Clone, Debug)]
pub struct LoweredPhase {
    /// Name, unique in its body.
    pub name: String,
    /// Kind of phase, with its operands.
    pub kind: PhaseKind,
    /// The ops it covers, for reports.
    pub ops: Vec<&'static str>,
}

/// One CPU loop nest, or one or more kernel launches, and what they cost.
#[derive(Clone, Debug)]
pub struct Phase {
    lowered: LoweredPhase,
    /// One token after [`Prediction::DECODE_CONTEXT`] others.
    pub decode: Cost,
    /// A token and its drafts, all of them sampled, after as many others; for a draft head's phases, the
    /// first pass. Equal to `decode` if nothing is drafted.
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
    /// Drafts of a sequence that a step verifies; 0 if there are none.
    pub fn drafts(&self) -> usize {
        self.target.drafts()
    }

    /// The first matrix that a body multiplies by.
    pub fn first_matrix(&self, body: &PlanBody<P>) -> Option<FieldId> {
        body.phases.iter().find_map(|phase| phase.as_ref().kind.kind().streams())
    }

    /// For each layer of a body in order, the first matrix that the schedule reads after it: the matrix's
    /// body, the layer's index in that body, and the matrix.
    pub fn following(&self, body: BodyId) -> Vec<(BodyId, usize, FieldId)> {
        let places: Vec<(BodyId, usize)> = self.places().collect();
        let of = |at: usize| {
            let mut behind = places[at + 1..].iter();
            behind.find_map(|it| Some((it.0, it.1, self.first_matrix(&self.bodies[it.0.0])?)))
        };
        (0..places.len()).filter(|at| places[*at].0 == body).filter_map(of).collect()
    }

    /// The schedule as bodies and the index of the layer in its body; 0 if the body has none.
    pub fn places(&self) -> impl Iterator<Item = (BodyId, usize)> {
        self.schedule.iter().map(|(body, layer)| {
            let layers = &self.bodies[body.0].layers;
            let at = layer.and_then(|layer| layers.iter().position(|it| *it == layer));
            (*body, at.unwrap_or(0))
        })
    }

    /// The model's last body, which computes the logits.
    pub fn head(&self) -> BodyId {
        self.schedule.last().expect("a graph ends with its head").0
    }

    /// The buffer of the model's logits.
    pub fn logits(&self) -> BufferId {
        let phases = &self.bodies[self.head().0].phases;
        phases.last().expect("a head ends with its logits").as_ref().kind.result()
    }

    /// Looks up a field.
    pub fn field(&self, id: FieldId) -> &Field {
        &self.fields[id.0]
    }

    /// Looks up a buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// Instances of a field: one per layer of its owner, or one.
    pub fn instances(&self, field: &Field) -> usize {
        field.owner.map_or(1, |owner| self.bodies[owner.0].layers.len())
    }
}

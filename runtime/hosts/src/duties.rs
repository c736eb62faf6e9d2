//! What a process does in a start, and its first answer.

use crate::hello::Room;
use crate::message::{Done, Task};
use monomorph_model::{
    BlockId, Model, Output, RowOutput, SequenceStep, SlidingId, SlidingTable, Slot, Step, Tokens,
};

/// What a process does in a start, in this order; all processes do each at the same time.
pub trait Duties {
    /// The model that this process has.
    type Model: Model;

    /// What there is room for, before any of it is claimed; [`Room::ANY`] where only claiming tells.
    ///
    /// # Errors
    /// When there is too little.
    fn plan(&mut self) -> Result<Room, String>;

    /// Claims memory for no more than this and loads the weights. What others then lack is left unused.
    ///
    /// # Errors
    /// When that fails.
    fn load(&mut self, room: Room) -> Result<Self::Model, String>;

    /// Names a collective that all processes then join; asked of the head alone.
    ///
    /// # Errors
    /// When that fails.
    fn identify(&mut self) -> Result<Vec<u8>, String>;

    /// Joins the collective of this name.
    ///
    /// # Errors
    /// When that fails.
    fn join(&mut self, model: &mut Self::Model, name: &[u8]) -> Result<(), String>;

    /// Adds 2 to the power of the rank up over all processes, as steps will add.
    ///
    /// # Errors
    /// When that fails.
    fn sum(&mut self, model: &mut Self::Model) -> Result<u64, String>;

    /// Records programs that contain collectives.
    ///
    /// # Errors
    /// When that fails.
    fn record(&mut self, model: &mut Self::Model) -> Result<(), String>;
}

/// Does a task of a start.
pub(crate) fn perform<D: Duties>(
    duties: &mut D,
    model: &mut Option<D::Model>,
    task: &Task,
) -> Result<Done, String> {
    let loaded = || "the model is not loaded yet".to_owned();
    Ok(match task {
        Task::Plan => Done::Plan(duties.plan()?),
        Task::Load(room) => {
            let loaded = model.insert(duties.load(*room)?);
            Done::Load(claimed(loaded))
        }
        Task::Identify => Done::Identify(duties.identify()?),
        Task::Join(name) => {
            duties.join(model.as_mut().ok_or_else(loaded)?, name)?;
            Done::Join
        }
        Task::Sum => Done::Sum(duties.sum(model.as_mut().ok_or_else(loaded)?)?),
        Task::Record => {
            duties.record(model.as_mut().ok_or_else(loaded)?)?;
            Done::Record
        }
        Task::Canary => Done::Canary(first_answer(model.as_mut().ok_or_else(loaded)?)?),
        Task::Serve(_) => return Err("serving is no task of a start".to_owned()),
    })
}

/// The memory that a model has.
fn claimed<M: Model>(model: &M) -> Room {
    let offload = model.offload();
    Room {
        blocks: model.blocks() as u64,
        sliding: model.sliding_blocks() as u64,
        sequences: model.sequences() as u64,
        snapshots: model.snapshots() as u64,
        places: offload.map_or(0, |room| room.places as u64),
        group: offload.map_or(0, |room| room.group as u64),
    }
}

/// Ids of the prompt that is asked first.
const PROMPT: usize = 4;

/// The ids of one greedy step over a short prompt. All processes run it alike, so that what they exchange
/// meets; the engine's own canary comes later and goes through commands.
fn first_answer<M: Model>(model: &mut M) -> Result<Vec<u32>, String> {
    let spec = M::SPEC;
    let ids: Vec<u32> = (0..PROMPT.min(spec.step_tokens)).map(|id| (id % spec.vocabulary) as u32).collect();
    let blocks = (ids.len() + spec.ahead(0)).div_ceil(spec.block_tokens);
    let row = SequenceStep {
        slot: Slot(0),
        position: 0,
        begins: true,
        tokens: Tokens::Known(ids),
        drafts: 0,
        generated: false,
        following: None,
        blocks: (0..blocks as u32).map(BlockId).collect(),
        output: Output::greedy(0),
    };
    let table = || SlidingTable { first: 0, blocks: (0..blocks as u32).map(SlidingId).collect() };
    let sliding = M::SLIDING.map(|_| table()).into_iter().collect();
    let ticket = model.submit(&Step { sequences: vec![row], sliding, ..Step::default() });
    match model.collect(ticket).rows.first() {
        Some(RowOutput::Sampled(sampled)) => Ok(vec![sampled.id]),
        Some(RowOutput::Verified(verified)) => {
            let sampled = verified.sampled.iter().map(|one| one.id);
            Ok(sampled.chain(verified.drafts.iter().copied()).collect())
        }
        other => Err(format!("the model answers its first prompt with {other:.80?}")),
    }
}

/// How the bytes of blocks and states are spread over a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each process has all of them.
    Whole,
    /// Each has an equal part, in the order of their ranks.
    Part,
}

impl Share {
    /// The part of `rank` of `ranks` in so many bytes.
    pub(crate) fn range(self, bytes: usize, rank: usize, ranks: usize) -> std::ops::Range<usize> {
        match self {
            Share::Whole => 0..bytes,
            Share::Part => bytes * rank / ranks..bytes * (rank + 1) / ranks,
        }
    }
}

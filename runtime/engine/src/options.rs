//! The engine's options.

use crate::keep::KeepOptions;
use crate::scheduler::Policy;
use crate::sequence::LookupOptions;
use crate::swap::SwapOptions;
use monomorph_cache::Share;
use monomorph_model::{Model, ModelSpec, OffloadRoom, SlidingSpec, VisionSpec};
use std::time::Duration;

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// K/V blocks that the model was loaded with.
    pub blocks: usize,
    /// Most tokens of a sequence, prompt and answer together. What the model was made for and what the blocks
    /// hold limit it too: see [`EngineHandle::context`](crate::EngineHandle::context).
    pub context: usize,
    /// Most sequences that run at a time, no more than the model was loaded for. A step's limits bound them
    /// too: see [`EngineHandle::sequences`](crate::EngineHandle::sequences).
    pub sequences: usize,
    /// Most requests that may wait for admission.
    pub max_waiting: usize,
    /// The prefix cache.
    pub prefix: PrefixOptions,
    /// Where prefixes are kept for the next start; `None` where they end with the engine.
    pub keep: Option<KeepOptions>,
    /// How sequences share steps.
    pub schedule: ScheduleOptions,
    /// Which n-grams drafts are looked up by, where the model verifies what the engine drafts.
    pub lookup: LookupOptions,
    /// K/V offload; `None` where all blocks are on the device.
    pub offload: Option<OffloadShare>,
    /// Where pre-empted sequences are swapped to.
    pub swap: SwapOptions,
    /// The blocks of layers with a sliding window; `None` where the model has no such layers. The caller may
    /// leave it out: the engine asks its model.
    pub sliding: Option<SlidingPool>,
    /// The model's vision tower, if it has one. The caller may leave it out, as `sliding`.
    pub vision: Option<VisionSpec>,
}

/// The blocks of a model's layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingPool {
    /// The layers.
    pub spec: SlidingSpec,
    /// How many blocks there are.
    pub blocks: usize,
}

impl SlidingPool {
    /// That of a loaded model.
    pub fn of<M: Model>(model: &M) -> Option<SlidingPool> {
        M::SLIDING.map(|spec| SlidingPool { spec, blocks: model.sliding_blocks() })
    }
}

/// K/V offload: a sequence's share of the device, and the room for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadShare {
    /// The room on disk that the model was loaded with.
    pub room: OffloadRoom,
    /// Most blocks of a sequence on the device.
    pub resident: usize,
}

impl OffloadShare {
    /// The smallest share with which a model's sequences can be fed.
    pub fn least(spec: &ModelSpec, room: OffloadRoom) -> usize {
        let fed = (1 + spec.drafts()).max(spec.chunk_alignment());
        Share::least(room.group, spec.block_tokens, fed, spec.reach())
    }
}

impl EngineOptions {
    /// Options with a prefix cache without snapshots, the defaults of scheduler and lookup, as many sequences
    /// as a step takes, and no swapping.
    pub fn new(blocks: usize, context: usize, max_waiting: usize) -> EngineOptions {
        let (prefix, schedule) = (PrefixOptions::default(), ScheduleOptions::default());
        let (lookup, swap) = (LookupOptions::default(), SwapOptions::default());
        let sequences = usize::MAX;
        EngineOptions {
            blocks,
            context,
            sequences,
            max_waiting,
            prefix,
            keep: None,
            schedule,
            lookup,
            swap,
            offload: None,
            sliding: None,
            vision: None,
        }
    }
}

/// How sequences share steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// The order of admission and prefill.
    pub policy: Policy,
    /// Target of the time between tokens: the policy `slai` keeps it, and tokens that miss it are counted.
    pub tbt: Duration,
    /// Most prefilled tokens of a step, from the model's [`chunk_alignment`](ModelSpec::chunk_alignment) to
    /// its `step_tokens`; 0 means as many as fit.
    pub prefill_tokens: usize,
}

/// Default target of the time between tokens: ten tokens a second, about twice reading speed.
pub const TBT: Duration = Duration::from_millis(100);

impl Default for ScheduleOptions {
    /// First in, first out, with whole steps.
    fn default() -> ScheduleOptions {
        ScheduleOptions { policy: Policy::Fifo, tbt: TBT, prefill_tokens: 0 }
    }
}

impl ScheduleOptions {
    /// Checks the options against a model.
    ///
    /// # Errors
    /// When a step cannot carry so many prefilled tokens, or a prefill chunk would not fit; the message says
    /// why.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), String> {
        let (most, alignment, asked) = (spec.step_tokens, spec.chunk_alignment(), self.prefill_tokens);
        if asked > most {
            return Err(format!("a step of this build holds {most} tokens"));
        }
        if asked != 0 && asked < alignment {
            return Err(format!("prompts of this build are fed in chunks of {alignment} tokens"));
        }
        Ok(())
    }
}

/// Options of the prefix cache.
#[derive(Clone, Debug)]
pub struct PrefixOptions {
    /// Whether prefixes are cached at all.
    pub enabled: bool,
    /// Snapshots of recurrent state that the model was loaded with room for. Without them, prefixes of a
    /// model with such state are not cached.
    pub snapshots: usize,
    /// Tokens after which the state of a long sequence is saved again; at least 1. It is saved at the end of
    /// each prompt, too.
    pub snapshot_interval: usize,
}

/// Default interval of snapshots in a long sequence, in tokens: what a prompt that branches off may have to
/// prefill again.
pub const SNAPSHOT_INTERVAL: usize = 2048;

impl Default for PrefixOptions {
    /// An enabled cache without room for snapshots.
    fn default() -> PrefixOptions {
        PrefixOptions { enabled: true, snapshots: 0, snapshot_interval: SNAPSHOT_INTERVAL }
    }
}

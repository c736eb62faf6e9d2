//! What the next step runs, and which of the waiting requests is next: pure decisions on plain values.
//!
//! Two orders decide.
//!
//! **The queue** ([`pick`]): the lowest priority first; of these the clients that were served least
//! ([`Clients`], to within a [`QUANTUM`]); of their requests the first (`fifo`) or the one with the least to
//! feed (`slai`). But one admission in [`AGE_TURN`] goes to the request that has waited longest. Once a
//! request is next, no other overtakes it for blocks or a slot.
//!
//! **Running sequences** are ordered by who keeps its blocks longest ([`rank`]): the oldest first, then by
//! priority, then by age. The last is pre-empted first.
//!
//! **No request starves.** Let n earlier requests be in the system, waiting or running, when a request
//! arrives; let R sequences run at once, and C be the tokens of the context. Whatever the priorities, the
//! clients, the later arrivals and the policy, it is answered after at most
//!
//! > (n + 1) · (R + AGE_TURN) · C steps,
//!
//! times the number of steps in flight. Proof: first let it be the oldest (n = 0). Fewer than `AGE_TURN`
//! others are admitted before it. Each step feeds one of these or of the at most R that ran, and an admitted
//! sequence is fed at most C tokens before it ends or is pre-empted by another admission: at most (R +
//! `AGE_TURN` - 1) · C steps. From then on it ranks first, is fed in every step and never pre-empted: at most
//! C steps. A request that is not the oldest waits as long for each older one and then is the oldest. Each of
//! them that was held back ([`comes`]) adds up to [`HOLDS`] steps, and one whose prompt is scored counts
//! twice; requests that go before all others (canaries, one at a time and of eleven tokens) are not counted.
//! With equal priorities, one client and the policy `fifo`, no request overtakes another, and the number of
//! tokens of it and of all earlier ones bounds the steps.
//!
//! * **Growth.** Every running sequence gets the blocks its known tokens need, first to last. When blocks run
//!   out, the last is pre-empted: its blocks go back, and it is prefilled again later, or goes on from a
//!   copy.
//! * **Admission.** The next request is admitted when there are free blocks for all its tokens, and one more
//!   for every sequence that can still grow. Its blocks are taken at once, so prefill never runs out of them.
//! * **Budget.** Decoding sequences come first in every step, one token each and its drafts. The rest of the
//!   budget, at most [`SchedulerLimits::prefill_tokens`], goes to prefill chunks: with `fifo` in order; with
//!   `slai` by priority and shortest remainder, after an eighth for the first in order.
//! * **Deadlines.** With `slai` a step's prefill is cut so that the most urgent decoding sequence has its
//!   token in time, as the [`Pace`] of earlier steps predicts, but never below an eighth of the budget, or
//!   one chunk.
//! * **Scores.** Of prompts whose logits are returned for every token a step feeds at most
//!   [`SchedulerLimits::scored_tokens`]: logits are large.
//! * **Chunk alignment.** Prefill chunks of a batch-invariant model end where its kernels sum in the same
//!   order on both sides, and the generated tokens of a pre-empted sequence are decoded again, one a step.
//! * **Images.** A sequence is fed up to the first image whose rows are not on the device yet. Where the
//!   tokens of an image see each other, no chunk ends within it: it ends before, and no deadline cuts an
//!   image of the first prompt. Its tokens fit every step, whatever that decodes
//!   ([`SchedulerLimits::most_whole`]).
//! * **Drafts.** A step may write behind a sequence's tokens: the drafts it verifies and those it makes.
//!   Every sequence holds blocks for that many more positions from its admission on.
//! * **Ahead.** While a step is in flight, the next is decided as if each of its rows yielded a token and
//!   none ended its sequence. A sequence whose next token must wait for the host is left out for a turn.
//!   Blocks that a step in flight may write cannot change hands, so no sequence is pre-empted then: the plan
//!   is empty, which says to collect first. The row of a sequence that turns out to have ended is discarded.

mod pace;
mod queue;
mod step;

pub use pace::Pace;
pub use queue::{
    AGE_TURN, CLIENTS, Candidate, Clients, GENERATED, HOLDS, Policy, QUANTUM, Turns, comes, pick,
};
pub use step::{LEAST_PART, schedule};

use monomorph_cache::admission::blocks_for;

/// What a step may carry, and what a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Tokens of a block; at least 1.
    pub block_tokens: usize,
    /// Tokens of a step over all its sequences; at least 1.
    pub step_tokens: usize,
    /// Sequences of a step; at least 1.
    pub step_sequences: usize,
    /// Most drafts of a sequence; 0 where nothing is drafted.
    pub drafts: usize,
    /// Positions behind a sequence's tokens that a step may write; at least `drafts`.
    pub reach: usize,
    /// Chunk alignment: a prefill chunk that does not end its prompt ends at a multiple of it; from 1 to
    /// `step_tokens`.
    pub chunk_tokens: usize,
    /// Most tokens of prompts in a step; from `chunk_tokens` to `step_tokens`.
    pub prefill_tokens: usize,
    /// Most of these whose logits all come back; at least `chunk_tokens`.
    pub scored_tokens: usize,
}

/// Tokens of an image that see each other, so that no step may end between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeSpan {
    /// The index of the first.
    pub start: usize,
    /// The index behind the last.
    pub end: usize,
}

/// Which of [`View::whole`] are a sequence's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WholeSpans {
    /// The first of them.
    pub first: usize,
    /// How many they are: they follow one another, in the order of tokens.
    pub count: usize,
}

impl WholeSpans {
    /// A sequence's part of them all.
    fn of(self, all: &[WholeSpan]) -> &[WholeSpan] {
        &all[self.first..self.first + self.count]
    }
}

impl SchedulerLimits {
    /// Most sequences that run at once: each must get a token and its drafts in every step, and one beside
    /// them a prefill chunk.
    pub fn running(&self) -> usize {
        let tokens = self.step_tokens.saturating_sub(self.chunk_tokens - 1);
        self.step_sequences.min(tokens / (1 + self.drafts))
    }

    /// Tokens of a prompt that every step has room for, whatever it decodes: an image whose tokens see each
    /// other has no more.
    pub fn most_whole(&self) -> usize {
        let decodes = self.running().saturating_sub(1) * (1 + self.drafts);
        self.step_tokens.saturating_sub(decodes).min(self.prefill_tokens)
    }
}

/// A sequence that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Prompt and generated tokens when the steps in flight are done.
    pub tokens: usize,
    /// How many of them are in the cache by then; below `tokens`.
    pub cached: usize,
    /// How many of them, from the first, may have gone through prefill when this step is done, any number at
    /// a time: those behind are decoded, one at a time, or wait for the state at that point to be saved.
    pub prefill: usize,
    /// Drafts to be fed behind the last of them: above 0 only where that is the one token not in the cache.
    pub drafts: usize,
    /// Whether it may be fed in this step. It need not be when a step in flight samples a token that the host
    /// must see first, or its last; or when the next token is of an image whose rows are not there.
    pub ready: bool,
    /// Most tokens it can have.
    pub limit: usize,
    /// Blocks it holds.
    pub blocks: usize,
    /// Blocks freed if it and all after it are pre-empted: those that no earlier sequence shares.
    pub returns: usize,
    /// Whether the logits of all tokens it is fed are returned.
    pub scored: bool,
    /// Lower is served first.
    pub priority: i64,
    /// Microseconds until its next token is late; `None` where none has come yet, or there is no deadline.
    pub slack: Option<u64>,
    /// Its images that no step may end within.
    pub whole: WholeSpans,
}

impl Running {
    /// Blocks it needs to be fed, besides those it holds.
    pub fn missing(&self, limits: &SchedulerLimits) -> usize {
        let tokens = if self.ready { self.tokens + limits.reach } else { 0 };
        blocks_for(tokens, limits.block_tokens).saturating_sub(self.blocks)
    }
}

/// A sequence that holds no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Tokens it has.
    pub tokens: usize,
    /// How many of them are in the cache and need not be fed; below `tokens`.
    pub cached: usize,
    /// How many of these blocks running sequences hold. The others count among the free ones until it is
    /// admitted.
    pub shared: usize,
    /// As [`Running::prefill`].
    pub prefill: usize,
    /// As [`Running::drafts`], for a pre-empted sequence that resumes from its copy.
    pub drafts: usize,
    /// Most tokens it can have.
    pub limit: usize,
    /// As [`Running::scored`].
    pub scored: bool,
    /// Lower is served first.
    pub priority: i64,
    /// Whether it may be fed in the step that admits it.
    pub ready: bool,
    /// As [`Running::whole`].
    pub whole: WholeSpans,
}

/// Everything that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Blocks no sequence uses.
    pub free_blocks: usize,
    /// How many more sequences may run.
    pub free_slots: usize,
    /// Whether a step is in flight.
    pub in_flight: bool,
    /// In the order of [`rank`]: the last loses its blocks first.
    pub running: &'a [Running],
    /// Next first, as [`pick`] has it; those that cannot be admitted in one step may be left out.
    pub waiting: &'a [Waiting],
    /// The images of all of them that no step may end within.
    pub whole: &'a [WholeSpan],
    /// In which order prompts are fed, and whether deadlines count.
    pub policy: Policy,
    /// How long recent steps took.
    pub pace: Pace,
}

/// One sequence's part of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index among the sequences that run after pre-emption and admission.
    pub sequence: usize,
    /// Tokens to feed; at least 1. Beyond those not in the cache they are drafts: all that the sequence has.
    pub tokens: usize,
}

/// What to do, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// How many of the running to pre-empt, from the end: they wait again.
    pub preempt: usize,
    /// How many of the waiting to admit, from the front: they become the last of the running.
    pub admit: usize,
    /// What to feed, in the order of the running, each of which holds the blocks of all its tokens by then.
    /// Empty when a step in flight has to be collected first, or all wait for rows of images.
    pub rows: Vec<Row>,
    /// Whether prefill was reduced so that a token comes in time.
    pub cut: bool,
}

/// Sorts running sequences by who keeps its blocks longest: the oldest, then by priority, then by age. `key`
/// returns a sequence's priority and its number, which ascends by arrival.
///
/// Every wait is bounded because no priority can take the oldest's place.
pub fn rank<T>(running: &mut [T], key: impl Fn(&T) -> (i64, u64)) {
    // They are nearly always sorted already.
    running.sort_by_key(|one| key(one));
    if let Some(oldest) = (0..running.len()).min_by_key(|&at| key(&running[at]).1) {
        running[..=oldest].rotate_right(1);
    }
}

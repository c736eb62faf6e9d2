//! One batched forward step: what goes in, what comes out.

use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};
use std::sync::Arc;

/// Index of a K/V block, below [`crate::Model::blocks`]. In a step those from there on name blocks on disk:
/// see [`Step::far`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A place on disk for a group of K/V blocks, below [`places`](crate::FarRoom::places).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FarId(pub u32);

/// The place of a sequence in the engine, stable while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A place for a saved recurrent state, below [`crate::Model::snapshots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u32);

/// Where a recurrent state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatePlace {
    /// The one that a slot's sequence goes on from.
    Slot(Slot),
    /// A saved one.
    Snapshot(SnapshotId),
}

/// A copy of all layers' recurrent state of one sequence: saving or restoring it. What was in `to` is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// From where.
    pub from: StatePlace,
    /// To where.
    pub to: StatePlace,
}

/// One batched forward over some sequences.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What is copied before any row is worked on, one after another: a later copy sees what an earlier one
    /// made. Only of models with [recurrent state](crate::ModelSpec::state_bytes). A state is of a position:
    /// that behind the tokens its sequence was fed by the steps before; who goes on from a copy goes on
    /// there.
    pub copies: Vec<StateCopy>,
    /// The groups of blocks that its sequences have on disk: block `Model::blocks() + i * group + j` of a
    /// sequence is the `j`th of those [sent](crate::Model::send_far) to place `far[i]`. They are only read,
    /// each by one sequence and all of each, in the order in which sequences and their blocks name them.
    pub far: Vec<FarId>,
    /// At most `step_sequences` rows with at most `step_tokens` tokens in all.
    pub sequences: Vec<SequenceStep>,
    /// Whether histories, biases and masks of its rows follow, all of them, with
    /// [`sample`](crate::Model::sample): they depend on tokens that are not known yet, or take a while to
    /// compute. What stands for them now means nothing. Only of models that [sample
    /// apart](crate::Model::SAMPLES_APART).
    pub sampling_follows: bool,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// Whose it is.
    pub slot: Slot,
    /// Tokens already in the cache, which is the position of `tokens[0]`.
    pub position: usize,
    /// Whether a sequence begins in the slot: at position 0, or behind tokens that other sequences were fed.
    /// Of those, `blocks` hold keys and values already, and of a model with recurrent state a copy brought
    /// their state into the slot. So does one that was in another slot before and goes on here: its blocks
    /// and its state were written back.
    pub begins: bool,
    /// What to feed now.
    pub tokens: Tokens,
    /// How many of the last of `tokens` are drafts: 0, or [`DRAFTS`](crate::Model::DRAFTS) of a sequence that
    /// has been sampled for and feeds nothing else but the token sampled last. Those of a stack that drafts
    /// [itself](crate::ModelSpec::drafted) are what the sequence's last step returned, and are fed whenever
    /// it did.
    pub drafts: usize,
    /// Whether what is fed was generated, everything from `position` on, and is no part of the prompt. A
    /// batch-invariant stack decodes such tokens, which are fed it one at a time, and takes all others
    /// through prefill, one or many.
    pub generated: bool,
    /// The token after the last of `tokens` where it is known, because the prompt goes on: a model that
    /// drafts learns from it, whatever the output.
    pub following: Option<u32>,
    /// The blocks that hold positions `0 .. position + tokens.len()`, in order. Token `p` lives in block
    /// `blocks[p / block_tokens]` at row `p % block_tokens`. Where a token is to be sampled there are also
    /// those of [`ahead`](crate::ModelSpec::ahead) positions more. A stack that drafts itself writes the keys
    /// and values there of the drafts that its passes after the first go on from, behind the last token that
    /// holds; one that is given drafts may fill the rows of sequences without any up to as many as the others
    /// have, and what it writes there nobody reads.
    pub blocks: Vec<BlockId>,
    /// What to compute from the logits.
    pub output: Output,
}

/// The tokens a sequence is fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// These ids; at least one. A prompt is always fed so.
    Known(Vec<u32>),
    /// One token: the one sampled last for this slot. The step that samples it is an earlier one and may
    /// still be in flight, so that the host need not know the id; the device does.
    Sampled,
}

impl Tokens {
    /// How many tokens are fed.
    #[expect(clippy::len_without_is_empty, reason = "a step feeds every sequence at least one token")]
    pub fn len(&self) -> usize {
        match self {
            Tokens::Known(ids) => ids.len(),
            Tokens::Sampled => 1,
        }
    }
}

/// What a sequence wants from a step.
#[derive(Clone, Debug)]
pub enum Output {
    /// Nothing: the prompt is not finished yet.
    None,
    /// One token, from the logits after the last token fed that is no draft; and one from the logits after
    /// every draft that turned out to be the token sampled before it. So a draft changes how many tokens a
    /// step gives, and never which.
    Sample {
        /// How.
        sampling: Sampling,
        /// Position in the request's random stream: tokens generated so far. Every further token of the step
        /// takes the next.
        draw: u64,
        /// Tokens seen so far; empty unless `sampling.needs_history()`. Includes the tokens fed now but the
        /// drafts, which join it as generated ones as far as they hold.
        history: Vec<TokenUse>,
        /// What is added to logits: none for nothing, else to those of the first token that is sampled, and
        /// of every further one. Each list has an id once, and at most `monomorph_sampling::MAX_BIASES`.
        biases: Vec<Arc<[TokenBias]>>,
        /// Which ids may be sampled: none for any, else the mask of the first token that is sampled, and of
        /// every further one those of as many drafts as hold; all of the vocabulary's words. A token for
        /// which there is none is one behind a draft that the mask before it does not allow: nobody asks what
        /// it is.
        masks: Vec<TokenMask>,
    },
    /// The logits after every token fed.
    Logits,
}

impl Output {
    /// The likeliest token, by the logits alone; `draw` tokens came before it.
    pub fn greedy(draw: u64) -> Output {
        let sampling = Sampling::default();
        Output::Sample { sampling, draw, history: Vec::new(), biases: Vec::new(), masks: Vec::new() }
    }
}

/// A step in flight.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What a step produced, in the order of its sequences.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// One a sequence.
    pub rows: Vec<RowOutput>,
}

/// Why a row is [lost](RowOutput::Lost) whose logits are not all finite.
pub const NOT_NUMBERS: &str =
    "the model's logits are not numbers: its weights are damaged, or its arithmetic overflowed";

/// What a step produced for one sequence.
#[derive(Clone, Debug)]
pub enum RowOutput {
    /// [`Output::None`].
    None,
    /// [`Output::Sample`] of a model that verifies no drafts.
    Sampled(Sampled),
    /// [`Output::Sample`] of a model that verifies drafts, of all its sequences.
    Verified(Verified),
    /// [`Output::Logits`]: `[tokens, vocabulary]`, row-major.
    Logits(Vec<f32>),
    /// Whatever was asked for: blocks that the sequence has on disk could not be read, or its logits are no
    /// numbers, as this says. What the step wrote for it means nothing.
    Lost(String),
}

/// What a step of a model that verifies drafts produced for one sequence.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// The tokens sampled: all but the last are the first drafts fed, which held, and the last comes after
    /// them. At least one. The sequence goes on from the position behind those that held; what the step left
    /// behind it is as if never fed.
    pub sampled: Vec<Sampled>,
    /// What to feed after the last of them in the next step, to be verified there: as many ids as it
    /// [drafts itself](crate::ModelSpec::drafted).
    pub drafts: Vec<u32>,
}

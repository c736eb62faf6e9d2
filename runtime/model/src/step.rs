//! One batched forward step: what goes in, what comes out.

use crate::FeatureSlot;
use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};
use std::sync::Arc;

/// Index of a K/V block, below [`crate::Model::blocks`]. In a step those from there on name blocks on disk:
/// see [`Step::offloaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// Index of a K/V block of the layers with a sliding window, below [`crate::Model::sliding_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlidingId(pub u32);

/// The blocks of a sequence that layers with a sliding window still read, or write in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingTable {
    /// Which block of the sequence is the first of them. It holds positions from `first * block_tokens` on;
    /// all before it are given back and hold what others wrote.
    pub first: usize,
    /// They and those that follow, to the same block as those of the other layers.
    pub blocks: Vec<SlidingId>,
}

/// A place on disk for a group of K/V blocks, below [`places`](crate::OffloadRoom::places).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OffloadSlot(pub u32);

/// The slot of a running sequence, below [`crate::Model::sequences`].
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

/// What images are in a sequence's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceImages {
    /// The tokens fed that take rows of images in place of embeddings, ascending.
    pub spans: Vec<ImageSpan>,
    /// By what rotary embeddings turn the tokens fed.
    pub positions: Positions,
    /// The token that follows those fed, as a span of its own, where it stands for a part of an image whose
    /// rows are there: a draft head takes the row in place of the token's embedding.
    pub following: Option<ImageSpan>,
}

/// Adjacent tokens that stand for parts of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpan {
    /// The first of them, counted from the first token fed.
    pub at: usize,
    /// How many they are.
    pub count: usize,
    /// The slot with the image's rows.
    pub slot: FeatureSlot,
    /// The row that the first one takes.
    pub first: usize,
}

/// Positions by which rotary embeddings turn tokens. Everything else goes by the token's index in its
/// sequence: blocks, lengths, and what is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// Where the token stands.
    #[default]
    Index,
    /// The index, and so much more: what images before have saved, which is less than none.
    Shifted(i32),
    /// Time, height and width of each token fed. Only of a model whose positions have
    /// [three axes](crate::VisionSpec::grid_positions), as is `Shifted`.
    Grid(Vec<[u32; 3]>),
}

/// One batched forward over some sequences.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Copies of [recurrent state](crate::ModelSpec::state_bytes), made in order before any row is computed:
    /// a later copy sees what an earlier one wrote. A state belongs to a position, behind the tokens that
    /// earlier steps fed its sequence; a sequence that goes on from a copy goes on from that position.
    pub copies: Vec<StateCopy>,
    /// The groups of blocks that its sequences have on disk: block `Model::blocks() + i * group + j` of a
    /// sequence is the `j`th of those [sent](crate::Model::offload_blocks) to place `offloaded[i]`. They are
    /// only read, each whole and by one sequence, in the order in which sequences and their blocks name them.
    pub offloaded: Vec<OffloadSlot>,
    /// At most `step_sequences` rows with at most `step_tokens` tokens in all.
    pub sequences: Vec<SequenceStep>,
    /// The tables of layers with a [sliding window](crate::Model::SLIDING), one for each of `sequences`; none
    /// of a model that has no such layers. Each begins no later than with the first block that the sequence's
    /// row [attends to](monomorph_abi::sliding::Sliding::first).
    pub sliding: Vec<SlidingTable>,
    /// What images are in each of `sequences`; none where no sequence of the step has any, or had any before.
    pub images: Vec<SequenceImages>,
    /// Whether the histories, biases and masks of all its rows follow with [`sample`](crate::Model::sample),
    /// because they depend on tokens not known yet or take long to compute. Those in `sequences` mean nothing
    /// then. Only for models with [split sampling](crate::Model::SPLIT_SAMPLING).
    pub sampling_follows: bool,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// The sequence's slot.
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
    /// Whether everything from `position` on was generated. A batch-invariant stack decodes such tokens, one
    /// a step, and prefills all others, however many.
    pub generated: bool,
    /// The token after the last of `tokens`, where the prompt goes on: the draft prefill needs it, whatever
    /// the output.
    pub following: Option<u32>,
    /// The blocks that hold positions `0 .. position + tokens.len()`, in order. Token `p` lives in block
    /// `blocks[p / block_tokens]` at row `p % block_tokens`. Where a token is to be sampled there are also
    /// those of [`ahead`](crate::ModelSpec::ahead) positions more. A stack that drafts itself writes the keys
    /// and values there of the drafts that its passes after the first go on from, behind the last token that
    /// holds; one that is given drafts may pad rows without drafts to the length of the others; padding is
    /// never read.
    pub blocks: Vec<BlockId>,
    /// What to return.
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
    /// Number of tokens fed.
    #[expect(clippy::len_without_is_empty, reason = "a step feeds every sequence at least one token")]
    pub fn len(&self) -> usize {
        match self {
            Tokens::Known(ids) => ids.len(),
            Tokens::Sampled => 1,
        }
    }
}

/// What a step returns for a sequence.
#[derive(Clone, Debug)]
pub enum Output {
    /// Nothing: the chunk does not end the prompt.
    None,
    /// One token, from the logits after the last token fed that is no draft; and one from the logits after
    /// every draft that turned out to be the token sampled before it. So drafts change how many tokens a step
    /// gives, and never which.
    Sample {
        /// Parameters of the sampler.
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
        /// every further one those of as many drafts as hold; all of the vocabulary's words. No mask follows
        /// a draft that the mask before it forbids; that sample is unused.
        masks: Vec<TokenMask>,
    },
    /// The logits after every token fed.
    Logits,
}

impl Output {
    /// Greedy: the token with the largest logit; `draw` tokens came before it.
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
    /// One row per sequence.
    pub rows: Vec<RowOutput>,
}

/// Message of a row that is [lost](RowOutput::Lost) because its logits are not all finite.
pub const NOT_NUMBERS: &str =
    "the model's logits are not numbers: its weights are damaged, or its arithmetic overflowed";

/// What a step produced for one sequence.
#[derive(Clone, Debug)]
pub enum RowOutput {
    /// Answer to [`Output::None`].
    None,
    /// [`Output::Sample`] of a model that verifies no drafts.
    Sampled(Sampled),
    /// [`Output::Sample`] of a model that verifies drafts, of all its sequences.
    Verified(Verified),
    /// [`Output::Logits`]: `[tokens, vocabulary]`, row-major.
    Logits(Vec<f32>),
    /// The row has no result, for the reason given: blocks of the sequence could not be read from disk, or
    /// its logits are not finite. What the step wrote for the sequence is invalid.
    Lost(String),
}

/// What a step of a model that verifies drafts returns for one sequence.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// The tokens sampled: all but the last are the first drafts fed, which held, and the last comes after
    /// them. At least one. The sequence goes on from the position behind the accepted drafts, as if nothing
    /// behind it had been fed.
    pub sampled: Vec<Sampled>,
    /// What to feed after the last of them in the next step, to be verified there: as many ids as it
    /// [drafts itself](crate::ModelSpec::drafted).
    pub drafts: Vec<u32>,
}

//! A sequence's part of a step in flight.

use monomorph_cache::Snapshot;
use monomorph_model::Slot;

/// A row of a step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Whose it is. A slot is not given to another sequence before the step is collected.
    pub slot: Slot,
    /// Tokens fed that count as prefill.
    pub prefilled: usize,
    /// Whether they end before the prompt does.
    pub chunk: bool,
    /// Whether a token is sampled.
    pub samples: bool,
    /// The position that all logits are wanted from, where they are.
    pub scores: Option<usize>,
    /// Tokens of the sequence that are in the cache when the step is collected, drafts that hold aside.
    pub end: usize,
    /// Whether it has blocks on disk.
    pub offloaded: bool,
    /// Where the state of the sequence is saved in this step, and behind how many tokens.
    pub save: Option<(Snapshot, usize)>,
}

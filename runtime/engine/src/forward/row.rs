//! A sequence's part of a step in flight.

use monomorph_cache::Snapshot;
use monomorph_model::Slot;

/// A row of a step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Slot of the row's sequence. It is not given to another before the step is collected.
    pub slot: Slot,
    /// Tokens fed that count as prefill.
    pub prefilled: usize,
    /// Whether they end before the prompt does.
    pub chunk: bool,
    /// Whether a token is sampled.
    pub samples: bool,
    /// First position whose logits are returned, if any.
    pub scores: Option<usize>,
    /// Tokens of the sequence in the cache once the step is collected, accepted drafts not counted.
    pub end: usize,
    /// Whether the sequence has blocks on disk.
    pub offloaded: bool,
    /// Snapshot that the step saves the sequence's state to, and the number of tokens before it.
    pub save: Option<(Snapshot, usize)>,
}

//! What head and workers are started with.

use crate::deadlines::Deadlines;
use crate::duties::Share;
use crate::hub::{Loaded, OnEnd, Say};
use crate::token::Token;
use monomorph_model::ModelSpec;

/// What a process of a world is started with.
#[derive(Clone)]
pub struct Options {
    /// The secret of the world.
    pub token: Token,
    /// How long it waits.
    pub deadlines: Deadlines,
    /// How blocks and states are spread.
    pub share: Share,
    /// Lines for the user.
    pub say: Say,
    /// How far loading has come.
    pub loaded: Loaded,
    /// Told when the world ends.
    pub on_end: OnEnd,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("token", &self.token)
            .field("deadlines", &self.deadlines)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

/// Most ranks of a world: a sum of one power of two each is exact in f32.
pub const MOST_RANKS: u32 = 16;

/// Most bytes of a message beside a block or a state: what all rows of a step are sampled by.
const STEP_BYTES: usize = 256 << 20;

/// Most bytes of a message between processes with this model.
pub(crate) fn most_bytes(spec: &ModelSpec) -> usize {
    let state = usize::try_from(spec.state_bytes).unwrap_or(usize::MAX);
    STEP_BYTES.saturating_add(spec.block_bytes.max(state))
}

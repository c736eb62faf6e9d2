//! Penalties for tokens seen.

use crate::{Sampling, TokenUse};

/// Applies the penalties to the logits of the tokens in `history` (each id once). Ids outside the row are
/// ignored.
pub(crate) fn apply(logits: &mut [f32], sampling: &Sampling, history: &[TokenUse]) {
    for used in history {
        let Some(logit) = logits.get_mut(used.id as usize) else { continue };
        // The penalty makes a token less likely, whatever the sign of its logit.
        *logit = if *logit > 0.0 {
            *logit / sampling.repetition_penalty
        } else {
            *logit * sampling.repetition_penalty
        };
        if used.generated > 0 {
            *logit -= sampling.frequency_penalty * used.generated as f32 + sampling.presence_penalty;
        }
    }
}

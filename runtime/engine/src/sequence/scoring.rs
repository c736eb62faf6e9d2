//! Log-probabilities of a prompt's tokens.
//!
//! A request for them runs as two sequences, one after the other. The first is fed all of the prompt but its
//! last token, returns all logits and samples nothing; it uses no cached prefix, which would have no logits.
//! The second is an ordinary sequence: it may reuse what the first left in the cache, and its answer has the
//! same bits as without the first.

use monomorph_sampling::{Sampled, score};
use std::ops::Range;

/// How far a prompt is scored.
#[derive(Debug)]
pub(crate) struct Scoring {
    /// Alternatives reported per token.
    top: u8,
    /// Tokens whose logits have arrived: the token after the last of them is scored too.
    scored: usize,
}

impl Scoring {
    /// The state of a prompt of at least two tokens.
    pub fn new(top: u8) -> Scoring {
        Scoring { top, scored: 0 }
    }

    /// Tokens of the prompt whose logits have arrived.
    pub fn scored(&self) -> usize {
        self.scored
    }

    /// The new log-probabilities in the logits of the tokens `fed`: a pre-empted sequence may be fed some
    /// tokens again.
    pub fn take(&mut self, prompt: &[u32], fed: Range<usize>, logits: &mut [f32]) -> Vec<Sampled> {
        let rows = logits.chunks_exact_mut(logits.len() / fed.len()).skip(self.scored - fed.start);
        let scores: Vec<Sampled> =
            rows.zip(&prompt[self.scored + 1..]).map(|(row, id)| score(row, *id, self.top)).collect();
        self.scored += scores.len();
        scores
    }
}

//! Log-probabilities of a prompt's tokens.
//!
//! A request that wants them is two sequences, one after the other. The first is fed all of the prompt but
//! its last token, asks for all logits and samples nothing; it goes on behind nothing that another left, for
//! of that there are no logits. The second is any sequence: it goes on behind what the first left, where
//! prefixes are kept, and its answer has the bits that it has without the first.

use monomorph_sampling::{Sampled, score};
use std::ops::Range;

/// How far a prompt is scored.
#[derive(Debug)]
pub(crate) struct Scoring {
    /// Alternatives that are told of each token.
    top: u8,
    /// Tokens whose logits have come: the one behind the last of them is scored too.
    scored: usize,
}

impl Scoring {
    /// Of a prompt of at least two tokens.
    pub fn new(top: u8) -> Scoring {
        Scoring { top, scored: 0 }
    }

    /// Tokens of the prompt whose logits have come.
    pub fn scored(&self) -> usize {
        self.scored
    }

    /// What is new in the logits behind the tokens `fed` of the prompt: one that was pre-empted may be fed
    /// some again.
    pub fn take(&mut self, prompt: &[u32], fed: Range<usize>, logits: &mut [f32]) -> Vec<Sampled> {
        let rows = logits.chunks_exact_mut(logits.len() / fed.len()).skip(self.scored - fed.start);
        let scores: Vec<Sampled> =
            rows.zip(&prompt[self.scored + 1..]).map(|(row, id)| score(row, *id, self.top)).collect();
        self.scored += scores.len();
        scores
    }
}

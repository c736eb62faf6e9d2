//! Log-probabilities under the unmodified logits.

use crate::filter::top_k;
use crate::numeric::{largest, sum, weight};

/// Logits processed at a time: the buffer stays in cache, and both passes over it are vector code.
const BLOCK: usize = 256;

/// Log-softmax of one row.
pub(crate) struct LogProbs<'a> {
    logits: &'a [f32],
    largest: f32,
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    pub(crate) fn new(logits: &'a [f32]) -> LogProbs<'a> {
        let largest = largest(logits);
        let mut total = 0.0;
        let mut weights = [0.0; BLOCK];
        for block in logits.chunks(BLOCK) {
            for (weight_of, &logit) in weights.iter_mut().zip(block) {
                *weight_of = weight(logit, largest, 1.0);
            }
            total += sum(&weights[..block.len()]);
        }
        LogProbs { logits, largest, log_sum: total.ln() }
    }

    /// The natural logarithm of a token's probability; minus infinity for one that cannot occur.
    pub(crate) fn of(&self, id: u32) -> f32 {
        match self.logits.get(id as usize) {
            // The difference of two infinities is NaN.
            Some(&logit) if logit == self.largest && logit > f32::NEG_INFINITY => -self.log_sum as f32,
            Some(&logit) if logit > f32::NEG_INFINITY => {
                (f64::from(logit) - f64::from(self.largest) - self.log_sum) as f32
            }
            _ => f32::NEG_INFINITY,
        }
    }

    /// The `count` likeliest tokens, likeliest first, the smallest id among equals.
    pub(crate) fn top(&self, count: usize) -> Vec<(u32, f32)> {
        if count == 0 {
            return Vec::new();
        }
        let mut top: Vec<(u32, f32)> = top_k(self.logits, count)
            .into_iter()
            .map(|candidate| (candidate.id, self.of(candidate.id)))
            .collect();
        let logit = |id: u32| self.logits[id as usize];
        top.sort_unstable_by(|a, b| logit(b.0).total_cmp(&logit(a.0)).then(a.0.cmp(&b.0)));
        top
    }
}

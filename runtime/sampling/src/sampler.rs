//! The reference sampler.

use crate::bias;
use crate::entropy;
use crate::filter::{self, Candidate};
use crate::logprobs::LogProbs;
use crate::numeric::{argmax, largest, sum, weight};
use crate::penalty;
use crate::random::uniform;
use crate::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};

/// Chooses the next token; the crate's page gives the order of the steps.
///
/// * `logits`: one row, `[vocabulary]`; it is used as scratch and holds nothing meaningful afterwards.
/// * `draw`: which number of the request's random stream to use; the engine counts the tokens generated.
/// * `history`: the tokens seen, each once; read only if [`Sampling::needs_history`].
///
/// Never panics: NaN counts as minus infinity, and a row without any finite logit gives token 0.
pub fn sample(logits: &mut [f32], sampling: &Sampling, draw: u64, history: &[TokenUse]) -> Sampled {
    sample_within(logits, sampling, draw, &Conditions { history, ..Conditions::default() })
}

/// The inputs of a row's sampling besides the request's parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions<'a> {
    /// The tokens seen, each once; read only if [`Sampling::needs_history`].
    pub history: &'a [TokenUse],
    /// Additions to logits, each id once.
    pub biases: &'a [TokenBias],
    /// The ids that may be sampled, if not all.
    pub mask: Option<&'a TokenMask>,
}

/// As [`sample`], with biases, and restricted to the ids that a mask allows, if there is one. If none of
/// these has a finite logit, the result is token 0 even if the mask does not allow it.
pub fn sample_within(
    logits: &mut [f32],
    sampling: &Sampling,
    draw: u64,
    conditions: &Conditions<'_>,
) -> Sampled {
    // A copy, because the row is about to be changed; only made for requests that ask for it.
    let unmodified = sampling.top_logprobs.map(|_| without_nan(logits.to_vec()));
    if let Some(mask) = conditions.mask {
        mask.apply(logits);
    }
    bias::apply(logits, conditions.biases);
    if sampling.needs_history() {
        penalty::apply(logits, sampling, conditions.history);
    }
    // Written so that a NaN temperature (which `validate` rejects) is greedy, too.
    let id = if sampling.temperature > 0.0 { choose(logits, sampling, draw) } else { argmax(logits) };
    let logprobs = unmodified.as_deref().map(LogProbs::new);
    Sampled {
        id,
        logprob: logprobs.as_ref().map(|logprobs| logprobs.of(id)),
        top: match (&logprobs, sampling.top_logprobs) {
            (Some(logprobs), Some(count)) => logprobs.top(count.into()),
            _ => Vec::new(),
        },
    }
}

/// The log-probability of a given token, such as one of a prompt, with the `top` likeliest in its place, as
/// [`sample`] would have reported it.
///
/// * `logits`: one row, `[vocabulary]`; a NaN in it becomes minus infinity.
pub fn score(logits: &mut [f32], id: u32, top: u8) -> Sampled {
    drop_nan(logits);
    let logprobs = LogProbs::new(logits);
    Sampled { id, logprob: Some(logprobs.of(id)), top: logprobs.top(top.into()) }
}

fn without_nan(mut row: Vec<f32>) -> Vec<f32> {
    drop_nan(&mut row);
    row
}

fn drop_nan(row: &mut [f32]) {
    for logit in row {
        *logit = if logit.is_nan() { f32::NEG_INFINITY } else { *logit };
    }
}

fn choose(logits: &mut [f32], sampling: &Sampling, draw: u64) -> u32 {
    let best = largest(logits);
    if best == f32::NEG_INFINITY {
        return 0;
    }
    if sampling.top_n_sigma > 0.0 {
        filter::top_n_sigma(logits, best, sampling.top_n_sigma);
    }
    let temperature = entropy::temperature(logits, best, sampling);
    if temperature <= 0.0 {
        return argmax(logits);
    }
    let uniform = uniform(sampling.seed, draw);
    // The tiniest temperatures have no finite inverse, and infinity times zero is NaN.
    let inverse = temperature.recip().min(f32::MAX);
    let top_k = usize::try_from(sampling.top_k).unwrap_or(usize::MAX);
    let top_p = f64::from(sampling.top_p);

    let mut candidates: Vec<Candidate>;
    if (1..logits.len()).contains(&top_k) {
        drop_nan(logits);
        candidates = filter::top_k(logits, top_k);
        for candidate in &mut candidates {
            candidate.weight = weight(candidate.weight, best, inverse);
        }
        if top_p < 1.0 {
            // Summed in order of id, so that the sum does not depend on the order that the selection left.
            candidates.sort_unstable_by_key(|candidate| candidate.id);
            let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
            filter::top_p(&mut candidates, top_p * total);
        }
    } else {
        for logit in &mut *logits {
            *logit = weight(*logit, best, inverse);
        }
        if top_p >= 1.0 {
            filter::min_p(logits, sampling.min_p);
            return filter::draw_row(logits, uniform);
        }
        let target = top_p * sum(logits);
        candidates = filter::heaviest(logits, target);
        filter::top_p(&mut candidates, target);
    }
    // The likeliest weighs exactly 1, so its share of the rest need not be known.
    candidates.retain(|candidate| candidate.weight >= sampling.min_p);
    filter::draw(&mut candidates, uniform)
}

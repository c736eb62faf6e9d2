//! Sampling: parameters, and the reference sampler that every device follows.
//!
//! [`sample`] works in this order, as transformers does and, except for `min_p`, vLLM (llama.cpp filters
//! first and divides by the temperature last):
//!
//! 1. log-probabilities, if requested, from the unmodified logits;
//! 2. the mask, if there is one: ids that it does not allow have a logit of minus infinity from here on;
//! 3. [biases](TokenBias) of single tokens; then penalties: repetition (prompt and answer), then frequency
//!    and presence (answer only);
//! 4. temperature; 0 stops here and takes the largest logit, the smallest id among equals. One that
//!    [follows the entropy](Sampling::dynatemp_range) is chosen of what `top_n_sigma` leaves;
//! 5. `top_n_sigma` (which the temperature does not change), then `top_k`, then `top_p` over the rest,
//!    then `min_p` against the likeliest;
//! 6. one draw from the remaining tokens: the uniform number is [`uniform`]`(seed, draw)`, a counter-based
//!    generator, so a draw depends only on the request's seed and the position of the draw.
//!
//! The same logits give the same token on every machine: the exponential is computed here, from additions and
//! multiplications in a fixed order, not by the system's library. A NaN counts as minus infinity.

mod bias;
mod entropy;
mod filter;
mod history;
mod logprobs;
mod lz;
mod mask;
mod numeric;
mod penalty;
mod random;
mod repeats;
mod sampler;

pub use bias::{Biases, Dry, MAX_BIASES, MAX_FIXED, TokenBias};
pub use history::with_generated;
pub use lz::{Lz, MAX_LZ_WINDOW};
pub use mask::TokenMask;
pub use numeric::is_finite;
pub use random::uniform;
pub use sampler::{Conditions, sample, sample_within, score};

/// Most alternatives whose log-probabilities a request may ask for.
pub const MAX_TOP_LOGPROBS: u8 = monomorph_abi::step::MAX_TOP_LOGPROBS as u8;

/// One request's sampling parameters. The default is greedy decoding without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the largest logit, the smallest id among equals.
    pub temperature: f32,
    /// Keep the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probabilities reach `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as probable as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keep tokens whose logits are at most this many standard deviations (of all finite logits) below the
    /// largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// Divides positive and multiplies negative logits of every token seen (prompt and answer); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token generated so far; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted, times its count, from the logit of every token generated so far; 0 is off.
    pub frequency_penalty: f32,
    /// How far the temperature may go from [`Sampling::temperature`], either way, with the entropy of each
    /// row: down to `temperature - range` where one token is certain, up to `temperature + range` where all
    /// are alike; 0 is off. Only the reference sampler does this.
    pub dynatemp_range: f32,
    /// The power to which the entropy, over the largest that there could be, is raised.
    pub dynatemp_exponent: f32,
    /// Seed of the request's random stream.
    pub seed: u64,
    /// How many alternatives to report with log-probabilities; `None` reports no log-probability at all.
    pub top_logprobs: Option<u8>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

impl Sampling {
    /// Greedy decoding without penalties: the default.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        top_n_sigma: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        dynatemp_range: 0.0,
        dynatemp_exponent: 1.0,
        seed: 0,
        top_logprobs: None,
    };

    /// Checks every parameter against its range (OpenAI's, where OpenAI has it).
    ///
    /// # Errors
    /// The name of the first field that is out of range, and what is wrong with it.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        let within = |field, value: f32, low: f32, high: f32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err((field, format!("must be from {low} to {high} and is {value}")))
        };
        within("temperature", self.temperature, 0.0, 2.0)?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(("top_p", format!("must be above 0 and at most 1 and is {}", self.top_p)));
        }
        within("min_p", self.min_p, 0.0, 1.0)?;
        if !(self.top_n_sigma >= 0.0 && self.top_n_sigma.is_finite()) {
            return Err((
                "top_n_sigma",
                format!("must be at least 0 and finite and is {}", self.top_n_sigma),
            ));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return Err((
                "repetition_penalty",
                format!("must be above 0 and finite and is {}", self.repetition_penalty),
            ));
        }
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("dynatemp_range", self.dynatemp_range, 0.0, 2.0)?;
        within("dynatemp_exponent", self.dynatemp_exponent, 0.0, 100.0)?;
        match self.top_logprobs {
            Some(count) if count > MAX_TOP_LOGPROBS => {
                Err(("top_logprobs", format!("must be at most {MAX_TOP_LOGPROBS} and is {count}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the temperature follows the entropy.
    pub fn is_adaptive(&self) -> bool {
        self.temperature > 0.0 && self.dynatemp_range > 0.0
    }

    /// Whether the sampler needs the tokens so far.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// How often a token occurred in a sequence so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// The token.
    pub id: u32,
    /// Occurrences among generated tokens; 0 means that it occurs only in the prompt.
    pub generated: u32,
}

/// A token sampled from one row of logits, or already in the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under the unmodified logits; `None` unless asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens with their log-probabilities, likeliest first; empty unless asked for.
    pub top: Vec<(u32, f32)>,
}

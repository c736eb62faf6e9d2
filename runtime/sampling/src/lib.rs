//! How the next token is chosen from a row of logits: parameters, and the reference sampler that every
//! device follows.

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
    /// Divides positive and multiplies negative logits of every token seen (prompt and answer); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token generated so far; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted, times its count, from the logit of every token generated so far; 0 is off.
    pub frequency_penalty: f32,
    /// Seed of the request's random stream.
    pub seed: u64,
    /// How many alternatives to report with log-probabilities; `None` reports no log-probability at all.
    pub top_logprobs: Option<u8>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            top_logprobs: None,
        }
    }
}

impl Sampling {
    /// Whether the sampler needs to know the tokens so far.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// How often a token occurred in a sequence so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// The token.
    pub id: u32,
    /// Occurrences among generated tokens; 0 means that it stands in the prompt only.
    pub generated: u32,
}

/// The token chosen from one row of logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under the unmodified logits; `None` unless asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens with their log-probabilities, likeliest first; empty unless asked for.
    pub top: Vec<(u32, f32)>,
}

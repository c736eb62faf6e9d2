//! Latencies of requests, as histograms that a scrape can read at any time.

use prometheus_client::metrics::histogram::Histogram;

/// Bounds of waits in seconds, from a token of a small model to a queue of minutes.
const SECONDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    320.0,
];
/// Bounds of counts of tokens.
const TOKENS: [f64; 17] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

/// One distribution a phase of a request. All are in seconds but the two that count tokens. Clones share
/// their counts.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// From submission to the first token.
    pub time_to_first_token: Histogram,
    /// Between the tokens of one step and those of the step before, of one sequence.
    pub inter_token: Histogram,
    /// From submission to the end of a complete answer.
    pub end_to_end: Histogram,
    /// From submission to the first admission.
    pub queue: Histogram,
    /// From the first admission to the first token.
    pub prefill: Histogram,
    /// From the first token to the end of a complete answer.
    pub decode: Histogram,
    /// From the first admission to the end of a complete answer.
    pub inference: Histogram,
    /// Of the decoding of a complete answer, the mean between two of its tokens.
    pub per_token: Histogram,
    /// Tokens of the prompts of complete answers.
    pub prompt_tokens: Histogram,
    /// Tokens generated for complete answers.
    pub generated_tokens: Histogram,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let (seconds, tokens) = (|| Histogram::new(SECONDS), || Histogram::new(TOKENS));
        Latencies {
            time_to_first_token: seconds(),
            inter_token: seconds(),
            end_to_end: seconds(),
            queue: seconds(),
            prefill: seconds(),
            decode: seconds(),
            inference: seconds(),
            per_token: seconds(),
            prompt_tokens: tokens(),
            generated_tokens: tokens(),
        }
    }
}

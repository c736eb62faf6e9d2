//! `perplexity`: how well the stack foretells a text, to compare formats with each other.

use crate::failure::Failure;
use crate::process::out;
use crate::start::alone::AloneArgs;
use crate::start::hosts::Work;
use crate::verbs::feeding::{feed_alone, log_probability};
use monomorph_model::{Model, ModelSpec};
use serde_json::json;
use std::num::NonZero;
use std::path::PathBuf;

/// Flags of `perplexity`.
#[derive(Debug, clap::Args)]
pub(crate) struct PerplexityArgs {
    /// A text in UTF-8.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of a window.
    #[arg(long, value_name = "N", default_value = "1024")]
    window: NonZero<usize>,
    /// Tokens from a window's begin to the next one's; of each but the first, only the tokens that the one
    /// before it did not have are judged [default: half a window].
    #[arg(long, value_name = "N")]
    stride: Option<NonZero<usize>>,
    /// Most windows [default: all of the text].
    #[arg(long, value_name = "N")]
    windows: Option<NonZero<usize>>,
    /// Feed the tokens one at a time instead of as many at once as a step takes.
    #[arg(long)]
    decode: bool,
    /// Print one JSON object, with each window.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: AloneArgs,
}

/// Tokens of a text that go through a model together, from nothing on.
#[derive(Clone, Debug, PartialEq)]
struct Window {
    /// Where its tokens begin and end in the text.
    begin: usize,
    end: usize,
    /// The first token that is judged. What stands before it is context; a text's first token has none.
    judged: usize,
}

/// Cuts a text of so many tokens. A last window that is not whole is left out, unless it is the only one.
fn windows(tokens: usize, window: usize, stride: usize, most: usize) -> Vec<Window> {
    let mut cut: Vec<Window> = Vec::new();
    let mut begin = 0;
    while cut.len() < most && begin + window <= tokens {
        let judged = cut.last().map_or(1, |last| last.end);
        cut.push(Window { begin, end: begin + window, judged });
        begin += stride;
    }
    if cut.is_empty() && tokens > 1 {
        cut.push(Window { begin: 0, end: tokens, judged: 1 });
    }
    cut
}

/// Runs windows of a text through the kernels and the cache that serving uses.
pub(crate) fn perplexity<M: Model>(args: &PerplexityArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    let window = args.window.get();
    if window < 2 || window > spec.context {
        return Err(format!("--window {window}: 2 to the model's context of {} tokens", spec.context).into());
    }
    let stride = args.stride.map_or(window / 2, NonZero::get);
    if stride > window - 1 {
        return Err(format!("--stride {stride} leaves tokens out: at most {} of a window", window - 1).into());
    }
    let opened = args.model.open(spec)?;
    let fault = |error: String| format!("--text {}: {error}", args.text.display());
    let text = std::fs::read_to_string(&args.text).map_err(|error| fault(error.to_string()))?;
    let tokens = opened.1.tokenizer.encode_prompt(&text).map_err(|error| fault(error.to_string()))?;
    let cut = windows(tokens.len(), window, stride, args.windows.map_or(usize::MAX, NonZero::get));
    let Some(longest) = cut.iter().map(|it| it.end - it.begin).max() else {
        return Err(fault("there are no two tokens in it".to_owned()).into());
    };
    args.model.drive::<M>(&opened, longest, Perplexity { args, tokens, windows: cut })
}

/// A text to run through a model.
struct Perplexity<'a> {
    args: &'a PerplexityArgs,
    tokens: Vec<u32>,
    windows: Vec<Window>,
}

impl Work for Perplexity<'_> {
    fn run<M: Model>(self, mut model: M) -> Result<(), Failure> {
        let mut judged = Vec::new();
        for window in &self.windows {
            let tokens = &self.tokens[window.begin..window.end];
            let mut sum = 0.0;
            feed_alone(&mut model, tokens, self.args.decode, |at, logits| {
                // A row is about the token behind it.
                let at = window.begin + at + 1;
                if (window.judged..window.end).contains(&at) {
                    sum -= log_probability(logits, self.tokens[at] as usize);
                }
            })?;
            judged.push(Judged { tokens: window.end - window.judged, sum });
        }
        print(M::SPEC, &self, &judged);
        Ok(())
    }
}

/// What a window's tokens cost.
#[derive(Clone, Copy, Debug)]
struct Judged {
    tokens: usize,
    /// Sum of the negative logarithms of their probabilities.
    sum: f64,
}

/// The mean over all tokens, and the standard error of the mean of windows.
fn mean(judged: &[Judged]) -> (f64, f64) {
    let tokens: usize = judged.iter().map(|it| it.tokens).sum();
    let mean = judged.iter().map(|it| it.sum).sum::<f64>() / tokens as f64;
    let of = |it: &Judged| it.sum / it.tokens as f64;
    let count = judged.len() as f64;
    let centre = judged.iter().map(of).sum::<f64>() / count;
    let spread = judged.iter().map(|it| (of(it) - centre).powi(2)).sum::<f64>();
    let error = if judged.len() > 1 { (spread / (count - 1.0) / count).sqrt() } else { f64::NAN };
    (mean, error)
}

fn print(spec: &ModelSpec, work: &Perplexity, judged: &[Judged]) {
    let args = work.args;
    let (mean, error) = mean(judged);
    let tokens: usize = judged.iter().map(|it| it.tokens).sum();
    let error = error.is_finite().then_some(error);
    if args.json {
        let windows: Vec<f64> = judged.iter().map(|it| it.sum / it.tokens as f64).collect();
        let cut: Vec<[usize; 3]> = work.windows.iter().map(|it| [it.begin, it.judged, it.end]).collect();
        let judged = json!({
            "target": spec.target, "tokens": tokens, "window": args.window, "nats": mean,
            "standard_error": error, "perplexity": mean.exp(), "windows": windows,
            "text_tokens": work.tokens.len(), "cut": cut,
        });
        out::print(format_args!("{judged}"));
        return;
    }
    let error = error.map_or(String::new(), |it| format!(" ± {:.3}", mean.exp() * it));
    out::print(format_args!(
        "perplexity {:.4}{error}: {mean:.5} nats a token, {tokens} tokens in {} windows of {}",
        mean.exp(),
        judged.len(),
        args.window
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_is_judged_once_and_with_context() {
        for (tokens, window, stride) in [(100, 10, 5), (101, 10, 9), (64, 16, 1), (10, 10, 5)] {
            let cut = windows(tokens, window, stride, usize::MAX);
            let judged: Vec<usize> = cut.iter().flat_map(|it| it.judged..it.end).collect();
            let last = cut.last().expect("a window").end;
            assert_eq!(judged, (1..last).collect::<Vec<_>>());
            assert!(tokens - last < stride, "{tokens} {window} {stride}");
            assert!(cut.iter().all(|it| it.judged > it.begin && it.end - it.begin == window));
        }
        assert_eq!(windows(7, 10, 5, 9), [Window { begin: 0, end: 7, judged: 1 }]);
        assert_eq!(windows(1, 10, 5, 9), []);
        assert_eq!(windows(1000, 10, 5, 3).len(), 3);
    }

    #[test]
    fn a_mean_is_of_tokens_and_its_error_of_windows() {
        let judged = [Judged { tokens: 2, sum: 2.0 }, Judged { tokens: 6, sum: 18.0 }];
        let (mean, error) = mean(&judged);
        assert_eq!(mean, 2.5);
        assert!((error - 1.0).abs() < 1e-12);
        assert!(super::mean(&judged[..1]).1.is_nan());
    }
}

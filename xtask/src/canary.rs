//! `cargo xtask canary`: what a checkpoint's weights answer under the reference interpreter, in the form its
//! quant spec takes.

use crate::{TargetOptions, fetch, paths};
use clap::Args;
use monomorph_compiler::reference::{Cache, Interpreter, Logits};
use monomorph_compiler::spec::types::LEAST_MARGIN;
use monomorph_compiler::{graph, spec};
use monomorph_text::{Special, Tokenizer};
use monomorph_weights::Checkpoint;
use std::path::PathBuf;

/// Texts that most models continue in only one way: the greedy token leads by a wide margin at every
/// position.
const TEXTS: &[&str] = &[
    "1, 2, 3, 4, 5, 6,",
    "Monday, Tuesday, Wednesday,",
    "January, February, March, April,",
    "a b c d e f g h",
    "red green blue red green blue red green blue",
    "To be, or not to be, that is the",
    "The quick brown fox jumps over the",
    "10 20 30 40 50 60",
    "north south east west north south east west north",
    "one two three four five six",
];

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    /// Weights that are known to be intact [default: fetched, and checked against their digest].
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Most tokens per answer.
    #[arg(long, value_name = "N", default_value_t = 8)]
    tokens: usize,
    /// Most canaries to print; those with the widest margin are kept.
    #[arg(long, value_name = "N", default_value_t = 3)]
    count: usize,
}

/// A prompt, its answer, and the smallest margin of any of its tokens.
struct Found {
    text: &'static str,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    margin: f32,
}

/// Prints the canaries as the tables that go into the quant spec.
pub fn canary(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load(&search, &options.target.target).map_err(|error| error.to_string())?;
    let weights = match options.weights {
        Some(path) => path,
        None => fetch::weights(&options.target)?,
    };
    let checkpoint = Checkpoint::open(&weights).map_err(|error| error.to_string())?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).map_err(|error| error.to_string())?;
    let graph = graph::build(&target.model, &target.quant);
    let interpreter =
        Interpreter::new(&graph, &target.quant, &checkpoint).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for text in TEXTS {
        let prompt = tokenizer.encode(text, Special::Plain).map_err(|error| error.to_string())?;
        let (answer, margin) = answer(&interpreter, &prompt, options.tokens);
        eprintln!("{text:?} + {:?}, leads by {margin:.2}", tokenizer.decode(&answer));
        if margin >= LEAST_MARGIN {
            found.push(Found { text, prompt, answer, margin });
        }
    }
    found.sort_by(|a, b| b.margin.total_cmp(&a.margin));
    found.truncate(options.count);
    if found.is_empty() {
        return Err(format!("no answer's tokens all lead by {LEAST_MARGIN} logits; try fewer (--tokens)"));
    }
    for Found { text, prompt, answer, margin } in found {
        let (went_on, margin) = (tokenizer.decode(&answer), (margin * 100.0).floor() / 100.0);
        println!("# {text:?} goes on {went_on:?}");
        println!("[[checkpoint.canary]]\nprompt = {prompt:?}\nanswer = {answer:?}\nmargin = {margin:?}\n");
    }
    Ok(())
}

/// Up to `tokens` greedy tokens, and the smallest margin over the runner-up of any of them, in logits.
fn answer(interpreter: &Interpreter, prompt: &[u32], tokens: usize) -> (Vec<u32>, f32) {
    let mut cache = Cache::default();
    let mut logits = interpreter.forward(prompt, &mut cache, Logits::Last);
    let (mut answer, mut margin) = (Vec::new(), f32::INFINITY);
    loop {
        let (id, lead) = lead(&logits);
        answer.push(id);
        margin = margin.min(lead);
        // An answer below the margin is rejected anyway.
        if answer.len() >= tokens || margin < LEAST_MARGIN {
            return (answer, margin);
        }
        logits = interpreter.forward(&[id], &mut cache, Logits::Last);
    }
}

/// The likeliest token (the smallest id on a tie) and its margin.
fn lead(logits: &[f32]) -> (u32, f32) {
    let (mut best, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > first {
            (best, second, first) = (id, first, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (best as u32, first - second)
}

#[cfg(test)]
mod tests {
    use super::lead;

    #[test]
    fn a_lead_is_over_the_nearest() {
        assert_eq!(lead(&[1.0, 5.0, 3.0]), (1, 2.0));
        assert_eq!(lead(&[5.0, 1.0, 5.0]), (0, 0.0));
        assert_eq!(lead(&[-3.0, -1.0, -2.5]), (1, 1.5));
    }
}

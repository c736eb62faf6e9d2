//! `bench`: prefill, decode and concurrent streams, beside what the plan predicted.

use crate::load::{ThreadArgs, WeightsArgs};
use crate::out;
use monomorph_engine::{EngineHandle, EngineOptions, Event, Request};
use monomorph_model::{
    BlockId, LoadOptions, Model, ModelSpec, Output, Progress, RowOutput, SequenceStep, Slot, Step, Tokens,
};
use monomorph_sampling::Sampling;
use serde_json::{Value, json};
use std::num::NonZero;
use std::time::Instant;

/// Flags of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// Tokens of the prompt that prefill is measured with.
    #[arg(long, value_name = "N", default_value = "512")]
    prompt_tokens: NonZero<usize>,
    /// Tokens that decode and streams are measured with.
    #[arg(long, value_name = "N", default_value = "128")]
    generate: NonZero<usize>,
    /// Tokens in the cache before decoding begins.
    #[arg(long, value_name = "N", default_value = "32")]
    depth: NonZero<usize>,
    /// Times everything is measured; the medians are reported.
    #[arg(long, value_name = "N", default_value = "3")]
    repeat: NonZero<usize>,
    /// Concurrent streams to measure, each generating after a prompt of `depth` tokens.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8")]
    streams: Vec<NonZero<usize>>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Measures, one warm-up round aside.
pub(crate) fn bench<M: Model>(args: &BenchArgs) -> Result<(), String> {
    let spec = M::SPEC;
    let (prompt, depth, generate) = (args.prompt_tokens.get(), args.depth.get(), args.generate.get());
    let longest = prompt.max(depth + generate);
    if longest > spec.context {
        return Err(format!("{longest} tokens asked for, and the model's context is {}", spec.context));
    }
    let most_streams = args.streams.iter().map(|count| count.get()).max().unwrap_or(1);
    let blocks_of = |tokens: usize| tokens.div_ceil(spec.block_tokens);
    // One more token a stream than it generates: the engine may look that far ahead.
    let blocks = blocks_of(longest).max(most_streams * blocks_of(depth + generate + 1));
    let checkpoint = args.weights.open(spec)?;
    let options = LoadOptions { blocks, threads: args.threads.count() };
    let mut model =
        M::load(&checkpoint, &options, &Progress::default()).map_err(|error| error.to_string())?;
    drop(checkpoint);

    let mut ids = Ids::new(spec.vocabulary);
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for round in 0..=args.repeat.get() {
        let seconds = prefill_seconds(&mut model, spec, &ids.take(prompt))?;
        let decode_seconds = decode_seconds(&mut model, spec, &ids.take(depth), generate)?;
        // The first round warms caches and clocks.
        if round > 0 {
            prefill.push(prompt as f64 / seconds);
            decode.push(generate as f64 / decode_seconds);
        }
    }
    let engine = EngineOptions { blocks, context: spec.context, max_waiting: most_streams };
    let engine = monomorph_engine::start(model, engine).map_err(|error| error.to_string())?;
    let mut streams = Vec::new();
    for count in &args.streams {
        let mut rates = Vec::new();
        for _ in 0..args.repeat.get() {
            let prompts = (0..count.get()).map(|_| ids.take(depth)).collect();
            rates.push((count.get() * generate) as f64 / streams_seconds(&engine, prompts, generate)?);
        }
        streams.push((count.get(), rates));
    }
    let threads = options.threads;
    let report = Report { spec, prompt, depth, generate, threads, prefill, decode, streams };
    if args.json {
        out::print(format_args!("{}", report.json()));
    } else {
        report.print();
    }
    Ok(())
}

/// Feeds a prompt, as many tokens at once as a step takes, up to the first sampled token.
fn prefill_seconds<M: Model>(model: &mut M, spec: &ModelSpec, prompt: &[u32]) -> Result<f64, String> {
    let started = Instant::now();
    feed(model, spec, prompt)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Generates `count` tokens greedily, one a step, after a prompt that does not count.
fn decode_seconds<M: Model>(
    model: &mut M,
    spec: &ModelSpec,
    prompt: &[u32],
    count: usize,
) -> Result<f64, String> {
    let mut token = feed(model, spec, prompt)?;
    let started = Instant::now();
    for at in 0..count {
        token = step(model, spec, prompt.len() + at, vec![token], true)?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Feeds a prompt into an empty sequence and returns the token sampled after it.
fn feed<M: Model>(model: &mut M, spec: &ModelSpec, prompt: &[u32]) -> Result<u32, String> {
    let mut position = 0;
    let mut token = 0;
    for chunk in prompt.chunks(spec.step_tokens) {
        let last = position + chunk.len() == prompt.len();
        token = step(model, spec, position, chunk.to_vec(), last)?;
        position += chunk.len();
    }
    Ok(token)
}

/// One step of one sequence; the token sampled, or 0 where none is.
fn step<M: Model>(
    model: &mut M,
    spec: &ModelSpec,
    position: usize,
    tokens: Vec<u32>,
    sample: bool,
) -> Result<u32, String> {
    let end = position + tokens.len();
    let output = if sample {
        Output::Sample { sampling: Sampling::default(), draw: 0, history: Vec::new() }
    } else {
        Output::None
    };
    let blocks = (0..end.div_ceil(spec.block_tokens) as u32).map(BlockId).collect();
    let row = SequenceStep { slot: Slot(0), position, tokens: Tokens::Known(tokens), blocks, output };
    let ticket = model.submit(&Step { sequences: vec![row] });
    match model.collect(ticket).rows.as_slice() {
        [RowOutput::Sampled(sampled)] if sample => Ok(sampled.id),
        [RowOutput::None] if !sample => Ok(0),
        _ => Err("the stack did not return what the step asked for".to_owned()),
    }
}

/// Runs one request a prompt through the engine, all at once; the time until the last one ends.
fn streams_seconds(engine: &EngineHandle, prompts: Vec<Vec<u32>>, generate: usize) -> Result<f64, String> {
    let started = Instant::now();
    let submit = |prompt| {
        let request = Request { ignore_eos: true, ..Request::new(prompt, generate) };
        engine.submit(request).map_err(|error| error.to_string())
    };
    let generations = prompts.into_iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    for mut generation in generations {
        loop {
            match generation.blocking_recv() {
                Some(Event::Token(_)) => {}
                Some(Event::Finished(finished)) if finished.generated_tokens == generate => break,
                Some(Event::Finished(finished)) => {
                    let (generated, reason) = (finished.generated_tokens, finished.reason);
                    return Err(format!("a stream ended after {generated} of {generate} tokens: {reason:?}"));
                }
                Some(Event::Failed(error)) => return Err(error.to_string()),
                None => return Err("a stream ended without a reason".to_owned()),
            }
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Made-up prompts: what the tokens are does not change the work.
struct Ids {
    state: u64,
    vocabulary: u64,
}

impl Ids {
    fn new(vocabulary: usize) -> Ids {
        Ids { state: 0x9e37_79b9_7f4a_7c15, vocabulary: vocabulary.max(1) as u64 }
    }

    fn take(&mut self, count: usize) -> Vec<u32> {
        let mut next = || {
            // xorshift64 (Marsaglia 2003).
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            (self.state % self.vocabulary) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}

/// What was measured, in tokens per second.
struct Report<'a> {
    spec: &'a ModelSpec,
    prompt: usize,
    depth: usize,
    generate: usize,
    threads: usize,
    prefill: Vec<f64>,
    decode: Vec<f64>,
    streams: Vec<(usize, Vec<f64>)>,
}

impl Report<'_> {
    fn json(&self) -> Value {
        let figures = &self.spec.figures;
        let streams = self.streams.iter().map(
            |(count, rates)| json!({"streams": count, "tokens_per_second": median(rates), "samples": rates}),
        );
        json!({
            "target": self.spec.target,
            "threads": self.threads,
            "prompt_tokens": self.prompt,
            "depth": self.depth,
            "generate": self.generate,
            "ours": {"prefill": median(&self.prefill), "decode": median(&self.decode)},
            "limit": {"prefill": figures.limit_prefill, "decode": figures.limit_decode},
            "predicted": {"prefill": figures.predicted_prefill, "decode": figures.predicted_decode},
            "samples": {"prefill": self.prefill, "decode": self.decode},
            "streams": streams.collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        let figures = &self.spec.figures;
        out::print(format_args!("{}, {} threads, tokens per second", self.spec.target, self.threads));
        out::print(format_args!(
            "{:<28} {:>10} {:>10} {:>10} {:>9}",
            "", "measured", "predicted", "limit", "of limit"
        ));
        let line = |name: String, rates: &[f64], predicted: f64, limit: f64| {
            let rate = median(rates);
            let share = 100.0 * rate / limit;
            out::print(format_args!("{name:<28} {rate:>10.1} {predicted:>10.1} {limit:>10.1} {share:>8.0}%"));
        };
        let prefill = format!("prefill of {}", self.prompt);
        line(prefill, &self.prefill, figures.predicted_prefill, figures.limit_prefill);
        let decode = format!("decode of {} after {}", self.generate, self.depth);
        line(decode, &self.decode, figures.predicted_decode, figures.limit_decode);
        for (count, rates) in &self.streams {
            out::print(format_args!(
                "{:<28} {:>10.1}",
                format!("{count} streams, all together"),
                median(rates)
            ));
        }
    }
}

/// The middle of some samples, or the mean of the two in the middle; 0 of none.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_few() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn made_up_ids_are_in_the_vocabulary_and_differ() {
        let ids = Ids::new(10).take(200);
        assert!((0..10).all(|id| ids.contains(&id)));
        assert!(ids.iter().all(|&id| id < 10));
    }
}

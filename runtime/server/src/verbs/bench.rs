//! `bench`: prefill, decode and concurrent streams, beside what the plan predicted.

use crate::failure::Failure;
use crate::load::{MemoryArgs, ThreadArgs, WeightsArgs};
use crate::out;
use crate::verbs::steps::{Steps, feed};
use monomorph_engine::{EngineHandle, EngineOptions, Event, Request};
use monomorph_model::{Model, ModelSpec, Progress};
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
    #[arg(long, visible_alias = "context", value_name = "N", default_value = "32")]
    depth: NonZero<usize>,
    /// Times everything is measured; the medians are reported.
    #[arg(long, value_name = "N", default_value = "3")]
    repeat: NonZero<usize>,
    /// Sequences to decode at once, one token of each a step, each after a prompt of `depth` tokens: the model's steps alone.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1")]
    batch: Vec<NonZero<usize>>,
    /// Concurrent streams to measure through the engine, each generating after a prompt of `depth` tokens; 0 measures none.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8")]
    streams: Vec<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

impl BenchArgs {
    /// K/V blocks that the largest of all measurements needs.
    fn blocks(&self, spec: &ModelSpec) -> Result<usize, String> {
        let (prompt, depth, generate) = (self.prompt_tokens.get(), self.depth.get(), self.generate.get());
        let longest = prompt.max(depth + generate);
        if longest > spec.context {
            return Err(format!("{longest} tokens asked for, and the model's context is {}", spec.context));
        }
        let most_batch = self.batch.iter().map(|count| count.get()).max().unwrap_or(1);
        if most_batch > spec.step_sequences {
            return Err(format!("--batch {most_batch}: a step takes {} sequences", spec.step_sequences));
        }
        let most_streams = self.streams.iter().copied().max().unwrap_or(1).min(spec.step_sequences);
        let blocks_of = |tokens: usize| tokens.div_ceil(spec.block_tokens);
        // One more token a stream than it generates: the engine may look that far ahead.
        let each = blocks_of(depth + generate + 1);
        Ok(blocks_of(longest).max(each * most_streams.max(most_batch)))
    }
}

/// Measures, one warm-up round aside.
pub(crate) fn bench<M: Model>(args: &BenchArgs, started: Instant) -> Result<(), Failure> {
    let spec = M::SPEC;
    let (prompt, depth, generate) = (args.prompt_tokens.get(), args.depth.get(), args.generate.get());
    let context = prompt.max(depth + generate + 1).min(spec.context);
    let blocks = args.blocks(spec)?;
    let weights = args.weights.open(spec)?;
    let options = args.memory.options(Some(blocks), context, args.threads.count(), out::say)?;
    let mut model = M::load(&weights, &options, &Progress::default())?;
    drop(weights);
    let loaded = started.elapsed().as_secs_f64();

    let mut ids = Ids::new(spec.vocabulary);
    let mut prefill = Vec::new();
    let mut first_token = None;
    for round in 0..=args.repeat.get() {
        let tokens = ids.take(prompt);
        let begin = Instant::now();
        feed(&mut model, &tokens)?;
        first_token.get_or_insert_with(|| started.elapsed().as_secs_f64());
        // The first round warms caches and clocks.
        if round > 0 {
            prefill.push(prompt as f64 / begin.elapsed().as_secs_f64());
        }
    }
    let mut batches = Vec::new();
    for count in args.batch.iter().map(|count| count.get()) {
        let mut rates = Vec::new();
        for round in 0..=args.repeat.get() {
            let prompts = (0..count).map(|_| ids.take(depth)).collect();
            let seconds = Steps::after(&mut model, prompts, depth + generate)?.decode(generate)?;
            if round > 0 {
                rates.push((count * generate) as f64 / seconds);
            }
        }
        batches.push((count, rates));
    }
    let mut streams = Vec::new();
    if args.streams.iter().any(|count| *count > 0) {
        let max_waiting = args.streams.iter().copied().max().unwrap_or(1);
        let engine = EngineOptions { blocks, context, max_waiting };
        let engine = monomorph_engine::start(model, engine).map_err(|error| error.to_string())?;
        for count in args.streams.iter().copied().filter(|count| *count > 0) {
            let mut rates = Vec::new();
            for _ in 0..args.repeat.get() {
                let prompts = (0..count).map(|_| ids.take(depth)).collect();
                rates.push((count * generate) as f64 / streams_seconds(&engine, prompts, generate)?);
            }
            streams.push((count, rates));
        }
    }
    let report = Report {
        spec,
        prompt,
        depth,
        generate,
        threads: options.threads,
        dummy: args.weights.is_dummy(),
        loaded,
        first_token: first_token.unwrap_or_default(),
        prefill,
        batches,
        streams,
    };
    if args.json {
        out::print(format_args!("{}", report.json()));
    } else {
        report.print();
    }
    Ok(())
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

/// What was measured, in tokens per second, and in seconds since the process was started.
struct Report<'a> {
    spec: &'a ModelSpec,
    prompt: usize,
    depth: usize,
    generate: usize,
    threads: usize,
    dummy: bool,
    loaded: f64,
    first_token: f64,
    prefill: Vec<f64>,
    batches: Vec<(usize, Vec<f64>)>,
    streams: Vec<(usize, Vec<f64>)>,
}

impl Report<'_> {
    /// The rates of one sequence, if they were measured.
    fn decode(&self) -> &[f64] {
        self.batches.iter().find(|(count, _)| *count == 1).map_or(&[], |(_, rates)| rates)
    }

    fn json(&self) -> Value {
        let figures = &self.spec.figures;
        let counted = |name: &str, all: &[(usize, Vec<f64>)]| -> Vec<Value> {
            let each = all.iter().map(
                |(count, rates)| json!({name: count, "tokens_per_second": median(rates), "samples": rates}),
            );
            each.collect()
        };
        json!({
            "target": self.spec.target,
            "weights": if self.dummy { "dummy" } else { "checkpoint" },
            "threads": self.threads,
            "prompt_tokens": self.prompt,
            "depth": self.depth,
            "generate": self.generate,
            "start_to_ready_ms": self.loaded * 1e3,
            "start_to_first_token_ms": self.first_token * 1e3,
            "ours": {"prefill": median(&self.prefill), "decode": median(self.decode())},
            "limit": {"prefill": figures.limit_prefill, "decode": figures.limit_decode},
            "predicted": {"prefill": figures.predicted_prefill, "decode": figures.predicted_decode},
            "samples": {"prefill": self.prefill, "decode": self.decode()},
            "batches": counted("sequences", &self.batches),
            "streams": counted("streams", &self.streams),
        })
    }

    fn print(&self) {
        let figures = &self.spec.figures;
        let weights = if self.dummy { ", weights: dummy" } else { "" };
        out::print(format_args!(
            "{}, {} threads{weights}, tokens per second",
            self.spec.target, self.threads
        ));
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
        for (count, rates) in &self.batches {
            let decode = format!("decode of {} after {}", self.generate, self.depth);
            if *count == 1 {
                line(decode, rates, figures.predicted_decode, figures.limit_decode);
            } else {
                let rate = median(rates);
                let step = 1e3 * *count as f64 / rate;
                out::print(format_args!(
                    "{:<28} {rate:>10.1}   {step:.3} ms a step",
                    format!("the same, batch {count}")
                ));
            }
        }
        for (count, rates) in &self.streams {
            out::print(format_args!(
                "{:<28} {:>10.1}",
                format!("{count} streams, all together"),
                median(rates)
            ));
        }
        let [loaded, first] = [self.loaded, self.first_token].map(|seconds| seconds * 1e3);
        out::print(format_args!(
            "{:<28} {loaded:>10.0} ms, first token after {first:.0} ms",
            "start to ready"
        ));
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

//! `bench`: prefill, decode and concurrent streams, beside what the plan predicted.

use crate::failure::Failure;
use crate::images::ImageSize;
use crate::process::out;
use crate::start::gpus::GpuArgs;
use crate::start::hosts::{HostsArgs, Work, World, drive};
use crate::start::load::{KEEP_NOTHING, MemoryArgs, ThreadArgs, WeightsArgs};
use crate::verbs::ending::Ending;
use crate::verbs::report::{Measured, Report};
use crate::verbs::seeing::{self, Seen};
use crate::verbs::steps::{Steps, feed};
use monomorph_engine::{EngineHandle, EngineOptions, Event, Request};
use monomorph_model::{Model, ModelSpec, StatesWanted};
use std::num::NonZero;
use std::time::Instant;

/// A context is long that is so many times the tokens of all rounds of decoding.
const LONG: usize = 64;

/// Flags of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// Tokens of the prompts that prefill is measured with.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512")]
    prompt_tokens: Vec<NonZero<usize>>,
    /// Tokens that decode and streams are measured with.
    #[arg(long, value_name = "N", default_value = "128")]
    generate: NonZero<usize>,
    /// Tokens in the cache before decoding begins.
    #[arg(long, visible_alias = "context", value_name = "N", default_value = "32")]
    depth: NonZero<usize>,
    /// Times everything is measured; the medians are reported.
    #[arg(long, value_name = "N", default_value = "3")]
    repeat: NonZero<usize>,
    /// Sequences to decode at once, one token of each a step and those of the drafts that hold, each after a
    /// prompt of `depth` tokens: the model's steps alone.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1")]
    batch: Vec<NonZero<usize>>,
    /// Concurrent streams to measure through the engine, each generating after a prompt of `depth` tokens; 0
    /// measures none.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8")]
    streams: Vec<usize>,
    /// Images of so many pixels to measure a vision tower with: its passes; and through the engine, after
    /// `depth` tokens of text, the first token and those that follow of prompts with one and with eight of
    /// them, beside prompts of as much text. Larger ones than a pass takes are resized as in a request.
    #[arg(long, value_name = "WIDTHxHEIGHT,WIDTHxHEIGHT", value_delimiter = ',')]
    images: Vec<ImageSize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    /// Which of several processes this is.
    #[command(flatten)]
    pub(crate) processes: HostsArgs,
}

impl BenchArgs {
    /// Tokens of the longest of all sequences.
    fn longest(&self, images: &[Seen]) -> usize {
        let (depth, generate) = (self.depth.get(), self.generate.get());
        let prompts = self.prompt_tokens.iter().map(|tokens| tokens.get());
        let seen = images.iter().map(|it| it.longest_prompt(depth) + generate);
        prompts.chain(seen).chain([depth + generate]).max().unwrap_or(1)
    }

    /// K/V blocks that the largest of all measurements needs, and sequences at a time. No sequence has more
    /// than `longest` tokens.
    fn needs(&self, spec: &ModelSpec, longest: usize) -> Result<(usize, usize), String> {
        let (depth, generate) = (self.depth.get(), self.generate.get());
        if longest > spec.usable_context() {
            let context = spec.usable_context();
            return Err(format!("{longest} tokens asked for, and the model's usable context is {context}"));
        }
        let most_batch = self.batch.iter().map(|count| count.get()).max().unwrap_or(1);
        if most_batch > spec.step_sequences {
            return Err(format!("--batch {most_batch}: a step takes {} sequences", spec.step_sequences));
        }
        let most_streams = self.streams.iter().copied().max().unwrap_or(1).min(spec.step_sequences);
        let blocks_of = |tokens: usize| tokens.div_ceil(spec.block_tokens);
        // One more token a stream than it generates: the engine may look that far ahead. Drafts reach as far,
        // or farther.
        let each = blocks_of(depth + generate + spec.reach().max(1));
        let most = most_streams.max(most_batch);
        Ok((blocks_of(longest + spec.reach()).max(each * most), most))
    }
}

/// Measures, one warm-up round aside.
pub(crate) fn bench<M: Model>(args: &BenchArgs, started: Instant) -> Result<(), Failure> {
    let spec = M::SPEC;
    let world = args.processes.read(M::RANKS, M::PROCESSES)?;
    let images = seeing::made_up::<M>(&args.images)?;
    let longest = args.longest(&images);
    let context = (longest + 1).min(spec.usable_context());
    let (blocks, sequences) = args.needs(spec, longest)?;
    let weights = args.weights.open(spec, args.threads.count())?;
    let reach = context + spec.reach();
    let states = StatesWanted { sequences: Some(sequences), snapshots: Some(0) };
    let mut options = args.memory.options(Some(blocks), reach, states, args.threads.count(), out::say)?;
    options.ordinals = args.gpus.ordinals(spec, args.processes.ranks_here(M::RANKS), M::ordinal_of)?;
    options.process = world.as_ref().map(World::process);
    let threads = options.threads;
    drive::<M>(world.as_ref(), &weights, &options, Bench { args, images, started, context, blocks, threads })
}

/// What is measured of a model.
struct Bench<'a> {
    args: &'a BenchArgs,
    images: Vec<Seen>,
    started: Instant,
    context: usize,
    blocks: usize,
    threads: usize,
}

impl Work for Bench<'_> {
    fn run<M: Model>(self, mut model: M) -> Result<(), Failure> {
        let (spec, Bench { args, mut images, started, context, blocks, threads }) = (M::SPEC, self);
        let (depth, generate) = (args.depth.get(), args.generate.get());
        let loaded = started.elapsed().as_secs_f64();

        let mut ids = Ids::new(spec.vocabulary);
        let mut first_token = None;
        let mut prefills = Vec::new();
        for prompt in args.prompt_tokens.iter().map(|tokens| tokens.get()) {
            let mut measured = Measured { count: prompt, ..Measured::default() };
            for round in 0..=args.repeat.get() {
                let tokens = ids.take(prompt);
                let begin = Instant::now();
                feed(&mut model, &tokens)?;
                first_token.get_or_insert_with(|| started.elapsed().as_secs_f64());
                // The first round warms caches and clocks.
                if round > 0 {
                    measured.rates.push(prompt as f64 / begin.elapsed().as_secs_f64());
                }
            }
            prefills.push(measured);
        }
        let mut batches = Vec::new();
        for count in args.batch.iter().map(|count| count.get()) {
            let mut measured = Measured { count, ..Measured::default() };
            // Prompts of long contexts take longer than what is measured behind them: there a round goes on
            // where the one before ended, and the last begins after about `depth` tokens.
            let ahead = args.repeat.get() * (generate + spec.reach());
            let (first, at_once) =
                if depth >= LONG * ahead { (depth - ahead, usize::MAX) } else { (depth, 1) };
            let mut rounds = 0..=args.repeat.get();
            while !rounds.is_empty() {
                let prompts = (0..count).map(|_| ids.take(first)).collect();
                let mut steps = Steps::after(&mut model, prompts, depth + generate)?;
                for round in rounds.by_ref().take(at_once) {
                    let decoded = steps.decode(generate)?;
                    if round > 0 {
                        measured.rates.push(decoded.tokens as f64 / decoded.seconds);
                        measured.steps.push(1e3 * decoded.seconds / decoded.steps as f64);
                        measured.sampled += decoded.tokens;
                        measured.rows += decoded.steps * count;
                    }
                }
            }
            batches.push(measured);
        }
        images.iter_mut().for_each(|seen| seen.pass(&mut model, args.repeat.get()));
        let mut streams = Vec::new();
        if !images.is_empty() || args.streams.iter().any(|count| *count > 0) {
            let max_waiting = args.streams.iter().copied().max().unwrap_or(1).max(1);
            let engine =
                EngineOptions { prefix: KEEP_NOTHING, ..EngineOptions::new(blocks, context, max_waiting) };
            let engine = Ending(monomorph_engine::start(model, engine).map_err(|error| error.to_string())?);
            let mut shown = 0;
            // Of other models it is empty; they link nothing of it.
            for seen in images.iter_mut().filter(|_| const { M::VISION.is_some() }) {
                seen.answer(
                    &engine,
                    |count| ids.take(count),
                    &mut shown,
                    [depth, generate, args.repeat.get()],
                )?;
            }
            for count in args.streams.iter().copied().filter(|count| *count > 0) {
                let mut measured = Measured { count, ..Measured::default() };
                let before = engine.stats();
                for _ in 0..args.repeat.get() {
                    let prompts = (0..count).map(|_| ids.take(depth)).collect();
                    let seconds = streams_seconds(&engine, prompts, generate)?;
                    measured.rates.push((count * generate) as f64 / seconds);
                }
                let after = engine.stats();
                if spec.drafts() > 0 {
                    measured.rows = (after.drafts_verified - before.drafts_verified) as usize / spec.drafts();
                    measured.sampled =
                        measured.rows + (after.drafts_accepted - before.drafts_accepted) as usize;
                }
                streams.push(measured);
            }
        }
        let report = Report {
            spec,
            depth,
            generate,
            threads,
            dummy: args.weights.is_dummy(),
            loaded,
            first_token: first_token.unwrap_or_default(),
            prefills,
            batches,
            streams,
            images,
        };
        if args.json {
            out::print(format_args!("{}", report.json()));
        } else {
            report.print();
        }
        Ok(())
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
                Some(Event::Prompt(_) | Event::Token(_)) => {}
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
pub(super) struct Ids {
    state: u64,
    vocabulary: u64,
}

impl Ids {
    pub(super) fn new(vocabulary: usize) -> Ids {
        Ids { state: 0x9e37_79b9_7f4a_7c15, vocabulary: vocabulary.max(1) as u64 }
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_ids_are_in_the_vocabulary_and_differ() {
        let ids = Ids::new(10).take(200);
        assert!((0..10).all(|id| ids.contains(&id)));
        assert!(ids.iter().all(|&id| id < 10));
    }
}

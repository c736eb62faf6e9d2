//! `generate`: one prompt, answered on the terminal.

use crate::answer::Answer;
use crate::answer::ends::Ends;
use crate::answer::part::EndReason;
use crate::answer::reading::Reading;
use crate::failure::Failure;
use crate::process::out;
use crate::process::random::random_seed;
use crate::request::generation::preset_sampling;
use crate::start::gpus::GpuArgs;
use crate::start::hosts::Start;
use crate::start::load::{CacheArgs, KEEP_NOTHING, MemoryArgs, Planned, ThreadArgs, WeightsArgs, load};
use crate::verbs::ending::Ending;
use crate::verbs::logits::read_lists;
use monomorph_engine::{EngineHandle, EngineOptions, Event, Request, Stats};
use monomorph_model::{ModelSpec, Progress};
use monomorph_text::{Chat, ChatEnd};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Most lists of token ids in one run.
const MOST_LISTS: usize = 4096;

/// Flags of `generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// What to answer.
    #[arg(value_name = "TEXT", required_unless_present_any = ["prompt", "tokens"], conflicts_with = "prompt")]
    text: Option<String>,
    /// The same, by name.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Instead of a text: a JSON list of lists of token ids, all continued at once; prints lists of ids.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "prompt", "system", "raw", "stop"])]
    tokens: Option<PathBuf>,
    /// Go on after the model would stop, with --tokens only.
    #[arg(long, requires = "tokens")]
    ignore_eos: bool,
    /// Continue the lists one after the other instead of all at once, with --tokens only.
    #[arg(long, requires = "tokens")]
    one_by_one: bool,
    /// Print pairs of an id and its log-probability instead of ids, with --tokens only.
    #[arg(long, requires = "tokens")]
    logprobs: bool,
    /// Instructions before the prompt.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the prompt as it is, without the chat template.
    #[arg(long)]
    raw: bool,
    /// Most tokens to generate [default: what the context leaves].
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 is greedy [default: the model's recommendation, as for the next ones].
    #[arg(long, value_name = "X")]
    temperature: Option<f32>,
    /// Keep the likeliest tokens up to this probability.
    #[arg(long, value_name = "X")]
    top_p: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep tokens at least this many times as probable as the likeliest.
    #[arg(long, value_name = "X")]
    min_p: Option<f32>,
    /// Weakens tokens seen before; 1 is off.
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Makes the answer repeatable [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the answer at this text (may be given several times).
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Streams an answer to standard output, timings to standard error.
pub(crate) fn generate(
    spec: &'static ModelSpec,
    start: &Start,
    args: &GenerateArgs,
    started: Instant,
) -> Result<(), Failure> {
    let room = args.memory.room(spec, 0, 0, args.weights.packed_bytes())?;
    let Planned { context, blocks, states, .. } =
        args.cache.plan(spec, start.sliding, room, Some(0), false)?;
    let mut sampling = preset_sampling(spec.sampling.first());
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
    sampling.min_p = args.min_p.unwrap_or(sampling.min_p);
    sampling.repetition_penalty = args.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    sampling.top_logprobs = args.logprobs.then_some(0);
    sampling.seed = args.seed.unwrap_or_else(random_seed);
    sampling.validate().map_err(|(field, what)| format!("--{} {what}", field.replace('_', "-")))?;
    if args.stop.iter().any(String::is_empty) {
        return Err("--stop must not be empty".to_owned().into());
    }

    let mut options =
        args.memory.options(blocks, context + spec.reach(), states, args.threads.count(), out::say)?;
    options.ordinals = args.gpus.ordinals(spec, start.ranks, start.ordinal_of)?;
    // Lists are all submitted before the first is done.
    let engine = EngineOptions { prefix: KEEP_NOTHING, ..EngineOptions::new(0, context, MOST_LISTS) };
    let (engine, text, _) =
        load(spec, start.engine, &args.weights, &options, None, engine, &Progress::default())?;
    let engine = Ending(engine);
    let loaded = started.elapsed().as_secs_f64();

    if let Some(file) = &args.tokens {
        let request = Request {
            sampling,
            stop_ids: text.tokenizer.end_ids().to_vec(),
            ignore_eos: args.ignore_eos,
            ..Request::new(Vec::new(), args.max_tokens.unwrap_or(context))
        };
        let lists = read_lists(file, spec)?;
        let printed =
            continue_lists(&engine, &lists, &request, if args.one_by_one { 1 } else { lists.len() })?;
        out::print(format_args!("{printed}"));
        let Stats { steps, tokens_prefilled, prefill_chunks, tokens_generated, preemptions, .. } =
            engine.stats();
        out::say(format_args!(
            "{steps} steps: {tokens_prefilled} tokens prefilled, {tokens_generated} generated; {prefill_chunks} prefill \
             chunks, {preemptions} sequences pre-empted",
        ));
        return Ok(());
    }
    let asked_for = args.text.as_deref().or(args.prompt.as_deref()).unwrap_or_default();
    let prompt = if args.raw {
        text.tokenizer.encode_prompt(asked_for)
    } else {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages: Vec<Value> = args.system.iter().map(|system| message("system", system)).collect();
        messages.push(message("user", asked_for));
        let chat = Chat { messages: &messages, end: ChatEnd::Answer, extra: &Map::new() };
        text.encode_chat(&chat).map(|prompt| prompt.ids)
    };
    let prompt = prompt.map_err(|error| error.to_string())?;
    let prompt_tokens = prompt.len();
    let request = Request {
        sampling,
        stop_ids: text.tokenizer.end_ids().to_vec(),
        ..Request::new(prompt, args.max_tokens.unwrap_or(context))
    };
    let generation = engine.submit(request).map_err(|error| error.to_string())?;
    let (reading, stops) = (Reading::plain(), args.stop.clone());
    let mut answer = Answer::new(generation, &text.tokenizer, reading, stops, prompt_tokens, Ends::never());

    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let asked = Instant::now();
    let mut first = None;
    let mut first_after_start = None;
    let end = loop {
        let piece = runtime.block_on(answer.next()).map_err(|error| error.to_string())?;
        first.get_or_insert_with(|| asked.elapsed());
        first_after_start.get_or_insert_with(|| started.elapsed());
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(piece.text().as_bytes()).and_then(|()| stdout.flush());
        if written.is_err() {
            // The reader of the pipe has left.
            return Ok(());
        }
        if let Some(end) = piece.end {
            let _ = stdout.write_all(b"\n").and_then(|()| stdout.flush());
            break end;
        }
    };
    // Until the first token is prefill; the others follow one by one. The engine's clocks leave out the text.
    let (prefill, decode) = match &end.timings {
        Some(timings) => (timings.prefill, timings.decode),
        None => {
            let first = first.unwrap_or_default();
            (first, asked.elapsed().saturating_sub(first))
        }
    };
    let generated = end.usage.completion_tokens;
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    out::say(format_args!(
        "loaded in {loaded:.2} s, first token {:.0} ms after the start; prompt {prompt_tokens} tokens, {:.1} tok/s; answer {generated} tokens, {:.1} tok/s{}",
        first_after_start.unwrap_or_default().as_secs_f64() * 1e3,
        rate(prompt_tokens, prefill.as_secs_f64()),
        rate(generated.saturating_sub(1), decode.as_secs_f64()),
        if end.reason == EndReason::Length { "; cut off at the length limit" } else { "" },
    ));
    Ok(())
}

/// Continues lists of token ids, so many side by side; what was generated, a list for each, of ids or of
/// pairs of an id and its log-probability. Stop ids end a list only without `ignore_eos`.
fn continue_lists(
    engine: &EngineHandle,
    lists: &[Vec<u32>],
    request: &Request,
    beside: usize,
) -> Result<Value, String> {
    let stop_ids = if request.ignore_eos { Vec::new() } else { request.stop_ids.clone() };
    let submit = |list: &Vec<u32>| {
        let request = Request { prompt: list.clone(), stop_ids: stop_ids.clone(), ..request.clone() };
        engine.submit(request).map_err(|error| error.to_string())
    };
    let mut continued: Vec<Vec<Value>> = Vec::new();
    for group in lists.chunks(beside.max(1)) {
        for mut generation in group.iter().map(submit).collect::<Result<Vec<_>, _>>()? {
            let mut tokens = Vec::new();
            loop {
                match generation.blocking_recv() {
                    Some(Event::Token(token)) => tokens.push(match token.logprob {
                        Some(logprob) => json!([token.id, logprob]),
                        None => json!(token.id),
                    }),
                    Some(Event::Finished(_)) => break,
                    // Log-probabilities were not asked for.
                    Some(Event::Prompt(_)) => {}
                    Some(Event::Failed(error)) => return Err(error.to_string()),
                    None => return Err("a generation ended without a reason".to_owned()),
                }
            }
            continued.push(tokens);
        }
    }
    Ok(json!(continued))
}

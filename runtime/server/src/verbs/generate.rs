//! `generate`: one prompt, answered on the terminal.

use crate::answer::{Answer, EndReason};
use crate::load::{CacheArgs, StartEngine, ThreadArgs, WeightsArgs, load};
use crate::openai::generation::{preset_sampling, random_seed};
use crate::out;
use monomorph_engine::{EngineOptions, Request};
use monomorph_model::{LoadOptions, ModelSpec, Progress};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::Instant;

/// Flags of `generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// What to answer.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
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
    threads: ThreadArgs,
}

/// Streams an answer to standard output, timings to standard error.
pub(crate) fn generate(
    spec: &'static ModelSpec,
    start: StartEngine,
    args: &GenerateArgs,
) -> Result<(), String> {
    let started = Instant::now();
    let (context, blocks) = args.cache.plan(spec)?;
    let mut sampling = preset_sampling(spec.sampling.first());
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
    sampling.min_p = args.min_p.unwrap_or(sampling.min_p);
    sampling.repetition_penalty = args.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    sampling.seed = args.seed.unwrap_or_else(random_seed);
    sampling.validate().map_err(|(field, what)| format!("--{} {what}", field.replace('_', "-")))?;
    if args.stop.iter().any(String::is_empty) {
        return Err("--stop must not be empty".to_owned());
    }

    let checkpoint = args.weights.open(spec)?;
    let options = LoadOptions { blocks, threads: args.threads.count() };
    let engine = EngineOptions { blocks, context, max_waiting: 1 };
    let (engine, text) = load(spec, start, &checkpoint, &options, engine, &Progress::default())?;
    drop(checkpoint);
    let loaded = started.elapsed().as_secs_f64();

    let prompt = if args.raw {
        text.tokenizer.encode_prompt(&args.prompt)
    } else {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages: Vec<Value> = args.system.iter().map(|system| message("system", system)).collect();
        messages.push(message("user", &args.prompt));
        text.encode_chat(&messages, &Map::new())
    };
    let prompt = prompt.map_err(|error| error.to_string())?;
    let prompt_tokens = prompt.len();
    let request = Request {
        prompt,
        max_tokens: args.max_tokens.unwrap_or(context),
        sampling,
        stop_ids: text.tokenizer.end_ids().to_vec(),
        ignore_eos: false,
    };
    let generation = engine.submit(request).map_err(|error| error.to_string())?;
    let mut answer = Answer::new(generation, &text.tokenizer, args.stop.clone(), prompt_tokens);

    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let asked = Instant::now();
    let mut first = None;
    let end = loop {
        let piece = runtime.block_on(answer.next()).map_err(|error| error.to_string())?;
        first.get_or_insert_with(|| asked.elapsed());
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(piece.text.as_bytes()).and_then(|()| stdout.flush());
        if written.is_err() {
            // Whoever read the answer has left.
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
        "loaded in {loaded:.2} s; prompt {prompt_tokens} tokens, {:.1} tok/s; answer {generated} tokens, {:.1} tok/s{}",
        rate(prompt_tokens, prefill.as_secs_f64()),
        rate(generated.saturating_sub(1), decode.as_secs_f64()),
        if end.reason == EndReason::Length { "; cut off at the length limit" } else { "" },
    ));
    Ok(())
}

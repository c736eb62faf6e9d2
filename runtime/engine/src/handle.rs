//! The clients' side of the engine: start and requests.

use crate::forward::{Command, Forward, Images, Keeper, SlidingWindows};
use crate::generation::Generation;
use crate::keep::KeepOptions;
use crate::latencies::Latencies;
use crate::options::{EngineOptions, OffloadShare, PrefixOptions, ScheduleOptions, SlidingPool};
use crate::request::{Event, FinishReason, Finished, Request, SubmitError, Timings};
use crate::sequence::{
    AnswerConstraint, Asked, Client, Images as SequenceImages, Lookup, LookupOptions, Reporter,
    SamplingState, Scoring, Sequence, Signals,
};
use crate::shared::{Health, QueuePlace, Shared, Stats};
use crate::swap::SwapOptions;
use monomorph_cache::Share;
use monomorph_model::{Drafter, Model, ModelSpec, RankCounts, RankMeter, VisionSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::unbounded_channel;

/// Why the engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// An option is out of range.
    Options(String),
    /// The model's own limits contradict each other.
    Spec(String),
    /// The system refused a thread.
    Thread(std::io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Options(what) => write!(f, "the engine cannot start: {what}"),
            StartError::Spec(what) => write!(f, "the engine cannot run this model: {what}"),
            StartError::Thread(error) => write!(f, "the forward thread cannot be started: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Starts the forward thread, which owns `model` from now on.
///
/// # Errors
/// When an option or a limit of the model is zero, the room to swap to cannot be had, or the system refuses a
/// thread.
pub fn start<M: Model>(model: M, options: EngineOptions) -> Result<EngineHandle, StartError> {
    let options = EngineOptions { sliding: SlidingPool::of(&model), vision: M::VISION, ..options };
    let (handle, forward) = prepare(M::SPEC, options)?;
    let handle = EngineHandle { ranks: model.meters().into(), ..handle };
    std::thread::Builder::new()
        .name("forward".into())
        .spawn(move || forward.serve(model))
        .map_err(StartError::Thread)?;
    Ok(handle)
}

/// Both ends of an engine that is not running yet.
///
/// # Errors
/// When an option or a limit of the model is zero.
pub(crate) fn prepare(
    spec: &'static ModelSpec,
    options: EngineOptions,
) -> Result<(EngineHandle, Forward), StartError> {
    let limits = [
        ("block_tokens", spec.block_tokens),
        ("step_tokens", spec.step_tokens),
        ("step_sequences", spec.step_sequences),
    ];
    if let Some((name, _)) = limits.into_iter().find(|&(_, value)| value == 0) {
        return Err(StartError::Spec(format!("{name} of {} is 0", spec.target)));
    }
    let EngineOptions {
        blocks,
        context,
        sequences,
        max_waiting,
        ref prefix,
        ref keep,
        schedule,
        lookup,
        ref swap,
        offload,
        sliding,
        vision,
    } = options;
    if let Some(vision) = &vision {
        check_vision(spec, vision).map_err(StartError::Spec)?;
    }
    lookup.check().map_err(StartError::Options)?;
    let refused = |error| format!("prefill_tokens {}: {error}", schedule.prefill_tokens);
    schedule.check(spec).map_err(|error| StartError::Options(refused(error)))?;
    let interval = prefix.snapshot_interval;
    let values = [
        ("blocks", blocks),
        ("context", context),
        ("sequences", sequences),
        ("max_waiting", max_waiting),
        ("snapshot_interval", interval),
    ];
    for (name, value) in values {
        if value == 0 {
            return Err(StartError::Options(format!("{name} must be at least 1")));
        }
    }
    if spec.step_tokens <= spec.drafts() {
        let (name, drafts) = (spec.target, spec.drafts());
        return Err(StartError::Spec(format!(
            "step_tokens of {name} is {}, which leaves no room for a token with its {drafts} drafts",
            spec.step_tokens
        )));
    }
    // A lone sequence must always fit, with all that a step writes behind it, so that the oldest can always
    // be fed.
    let mut most = blocks;
    if let Some(OffloadShare { room, resident }) = offload {
        let least = OffloadShare::least(spec, room);
        if resident < least || resident > blocks {
            return Err(StartError::Options(format!(
                "{resident} blocks of a sequence on the device: at least {least} are needed, and there are {blocks}"
            )));
        }
        most = resident.saturating_add(room.places.saturating_mul(room.group));
    }
    let room = most.saturating_mul(spec.block_tokens).saturating_sub(spec.reach());
    let context = context.min(spec.usable_context()).min(room);
    if context == 0 {
        return Err(StartError::Options(format!(
            "blocks are {blocks} of {} tokens in a context of {}, and drafts take {} of a sequence",
            spec.block_tokens,
            spec.context,
            spec.reach()
        )));
    }
    let window = SlidingWindows::new(spec, sliding, blocks, offload.is_some());
    if let Err((most, there)) = window.check(context) {
        return Err(StartError::Options(format!(
            "{there} blocks of layers with a sliding window: a sequence of {context} tokens needs {most}"
        )));
    }
    let shared = Arc::new(Shared::new(blocks, context));
    let (commands, inbox) = channel();
    if offload.is_some() && swap.host_bytes > 0 {
        let both = "copies of sequences and blocks on disk do not go together".to_owned();
        return Err(StartError::Options(both));
    }
    let sliding = sliding.map(|pool| pool.spec);
    swap.check(spec, sliding).map_err(StartError::Options)?;
    let images = Images::new(spec, sliding, swap).map_err(|error| StartError::Options(error.to_string()))?;
    let keeper = keep.as_ref().map(|keep| {
        let refused = |error: String| StartError::Options(format!("kept prefixes: {error}"));
        if !prefix.enabled {
            return Err(refused("no prefix is cached".to_owned()));
        }
        if spec.state_bytes > 0 && prefix.snapshots == 0 {
            return Err(refused("no snapshot of a recurrent state is cached".to_owned()));
        }
        keep.check(spec, sliding).map_err(refused)?;
        Keeper::new(spec, keep, [blocks, prefix.snapshots]).map_err(|error| refused(error.to_string()))
    });
    let keeper = keeper.transpose()?;
    let forward = Forward::new(spec, &options, (images, keeper), inbox, Arc::clone(&shared));
    let numbers = Arc::new(AtomicU64::new(0));
    let options = EngineOptions { context, sequences: forward.most_running(), ..options };
    let most_whole = most_whole(spec, &options, forward.most_whole());
    let ranks = Arc::default();
    Ok((EngineHandle { spec, options, most_whole, commands, shared, numbers, ranks }, forward))
}

/// Checks that a model with a vision tower can be fed what its tower sees.
///
/// # Errors
/// When it has no place for rows, or it does what does not go with images yet.
fn check_vision(spec: &ModelSpec, vision: &VisionSpec) -> Result<(), String> {
    let name = spec.target;
    if vision.slots == 0 {
        return Err(format!("{name} has a vision tower and no place for its rows"));
    }
    if vision.whole_spans && spec.batch_invariant.is_some() {
        return Err(format!(
            "{name} ends chunks at fixed places, and the tokens of its images have to be fed together"
        ));
    }
    Ok(())
}

/// Most tokens of an image that has to be fed whole: of a step that may carry `step` in any case, less where
/// a sequence has a share of the device.
fn most_whole(spec: &ModelSpec, options: &EngineOptions, step: usize) -> usize {
    let Some(OffloadShare { room, resident }) = options.offload else { return step };
    let least = |fed: usize| Share::least(room.group, spec.block_tokens, fed, spec.reach());
    (0..=step).rev().find(|fed| least(*fed) <= resident).unwrap_or(0)
}

/// The engine, for any number of threads. It stops when it is drained, or when the last handle is dropped and
/// all accepted requests are answered.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    spec: &'static ModelSpec,
    /// The usable context, and the sequences that may run.
    options: EngineOptions,
    /// Most tokens of an image that has to be fed whole.
    most_whole: usize,
    commands: Sender<Command>,
    shared: Arc<Shared>,
    numbers: Arc<AtomicU64>,
    /// The model's, by rank.
    ranks: Arc<[Arc<RankMeter>]>,
}

impl EngineHandle {
    /// The blocks of layers with a sliding window, of a model that has such layers.
    pub fn sliding(&self) -> Option<SlidingPool> {
        self.options.sliding
    }

    /// The model's vision tower, if it takes images.
    pub fn vision(&self) -> Option<VisionSpec> {
        self.options.vision
    }

    /// Most tokens that an image may have.
    pub fn most_image_tokens(&self) -> usize {
        self.options.vision.map_or(0, |vision| match vision.whole_spans {
            true => self.most_whole.min(vision.most_tokens()),
            false => vision.most_tokens(),
        })
    }

    /// Queues a request. Never blocks, so that async code may call it.
    ///
    /// # Errors
    /// When the request does not suit the model, the queue is full, or the engine no longer accepts requests.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.accept(request, false)
    }

    /// Queues a canary: a request that checks the engine's health. It goes before all others, takes no place
    /// in the queue and is in no count of requests, tokens or times; only its steps and blocks show.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`], but for a full queue.
    pub fn submit_canary(&self, request: Request) -> Result<Generation, SubmitError> {
        self.accept(request, true)
    }

    fn accept(&self, request: Request, canary: bool) -> Result<Generation, SubmitError> {
        match self.shared.health() {
            Health::Running => {}
            Health::Draining => return Err(SubmitError::Draining),
            Health::Stopped | Health::Poisoned(_) | Health::Dead(_) => return Err(SubmitError::Stopped),
        }
        let Request { prompt: tokens, max_tokens, sampling, mut stop_ids, .. } = request;
        let Request { ignore_eos, prompt_logprobs, constraint, priority, client, biases, images, .. } =
            request;
        let (prompt, context, vocabulary) = (tokens.len(), self.context(), self.spec.vocabulary);
        if prompt == 0 {
            return Err(SubmitError::PromptEmpty);
        }
        if prompt >= context {
            return Err(SubmitError::PromptTooLong { prompt, context });
        }
        if let Some(&id) = tokens.iter().chain(&stop_ids).find(|&&id| id as usize >= vocabulary) {
            return Err(SubmitError::TokenOutOfVocabulary { id, vocabulary });
        }
        let vision = self.options.vision;
        images.check(&tokens, vision.as_ref(), self.most_whole).map_err(SubmitError::Image)?;
        if prompt_logprobs.is_some() && !images.images.is_empty() && vision.is_some_and(|it| it.whole_spans) {
            let why = "this model gives no log-probabilities of a prompt with images";
            return Err(SubmitError::Image(why.to_owned()));
        }
        let head = self.spec.draft.is_some_and(|draft| draft.drafter == Drafter::Head);
        let images = SequenceImages::new(images, vision, head);
        if !ignore_eos {
            stop_ids.extend_from_slice(self.spec.protocol.stop_ids);
        }
        let constraint = match constraint {
            None => None,
            Some(constraint) if constraint.vocabulary() != vocabulary => {
                let of = constraint.vocabulary();
                return Err(SubmitError::Constraint(format!("it is made for a vocabulary of {of} tokens")));
            }
            Some(constraint) => {
                stop_ids.extend_from_slice(constraint.end_ids());
                let constraint = AnswerConstraint::new(constraint);
                Some(Box::new(constraint.map_err(|why| SubmitError::Constraint(why.to_string()))?))
            }
        };

        let (sender, events) = unbounded_channel();
        let signals = Arc::new(Signals::default());
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let generation = Generation {
            id,
            events,
            signals: Arc::clone(&signals),
            shared: Arc::clone(&self.shared),
            over: false,
        };
        let scoring = prompt_logprobs.filter(|_| prompt > 1).map(Scoring::new);
        if max_tokens == 0 && scoring.is_none() {
            let (reason, timings) = (FinishReason::Length, Timings::default());
            let finished =
                Finished { reason, stop: None, prompt_tokens: prompt, generated_tokens: 0, timings };
            // The receiver is alive: it is in `generation`.
            let _ = sender.send(Event::Finished(finished));
            return Ok(generation);
        }
        let limit = self.options.max_waiting;
        let full = |waiting| SubmitError::QueueFull { waiting, limit };
        let place = (!canary).then(|| QueuePlace::take(&self.shared, limit)).transpose().map_err(full)?;
        // On the client's thread: a long prompt takes a while.
        let lookup = self.lookup().map(|options| {
            let mut lookup = Lookup::new(options, self.spec.drafts());
            lookup.learn(&tokens);
            lookup
        });
        let span = tracing::info_span!("generation", id, prompt_tokens = prompt, max_tokens);
        let latencies = (!canary).then(|| Arc::clone(&self.shared.latencies));
        let sequence = Sequence::new(Asked {
            number: id,
            priority: if canary { i64::MIN } else { priority },
            account: client,
            limit: prompt + max_tokens.min(context - prompt),
            stop_ids,
            sampling: SamplingState::new(&tokens, sampling, biases, constraint, lookup.is_some()),
            tokens,
            images,
            lookup,
            scoring,
            block_tokens: self.spec.block_tokens,
            reporter: Reporter::new(Client { events: sender, signals }, place, latencies, span),
        });
        self.commands.send(Command::Submit(Box::new(sequence))).map_err(|_| SubmitError::Stopped)?;
        Ok(generation)
    }

    /// What each rank of the model has counted, by rank; nothing of a model that is none of several.
    pub fn ranks(&self) -> Vec<RankCounts> {
        self.ranks.iter().map(|meter| meter.read()).collect()
    }

    /// Tokens a sequence may have, prompt and answer together: the least of the option, the model's own
    /// context and what all blocks hold, both of these less the [`reach`](ModelSpec::reach) of its drafts.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Sequences that run at a time, at most.
    pub fn sequences(&self) -> usize {
        self.options.sequences
    }

    /// Options of the prefix cache.
    pub fn prefix(&self) -> &PrefixOptions {
        &self.options.prefix
    }

    /// Where prefixes are kept for the next start, if they are.
    pub fn keep(&self) -> Option<&KeepOptions> {
        self.options.keep.as_ref()
    }

    /// How sequences share steps.
    pub fn schedule(&self) -> &ScheduleOptions {
        &self.options.schedule
    }

    /// Which n-grams drafts are looked up by; `None` where the model drafts itself, or nothing is drafted.
    pub fn lookup(&self) -> Option<LookupOptions> {
        let draft = self.spec.draft.filter(|draft| draft.drafter == Drafter::Caller);
        draft.map(|_| self.options.lookup)
    }

    /// Room for copies of pre-empted sequences.
    pub fn swap(&self) -> &SwapOptions {
        &self.options.swap
    }

    /// The current counters.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Histograms of request latencies.
    pub fn latencies(&self) -> &Latencies {
        &self.shared.latencies
    }

    /// Whether the engine answers, and why not.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Refuses new requests from now on, finishes the accepted ones and stops. What is not finished within
    /// `deadline` fails with [`EngineError::DrainDeadline`] after the step in flight. Returns at once; of two
    /// calls the earlier deadline counts.
    pub fn drain(&self, deadline: Duration) {
        self.shared.set_health(Health::Draining);
        // A deadline beyond what the clock can say is none.
        let deadline = Instant::now().checked_add(deadline);
        // An engine that is gone needs no draining.
        let _ = self.commands.send(Command::Drain { deadline });
    }

    /// Ends the engine because its answers are wrong: `cause` says how that is known. Every client is told
    /// after the step in flight, and nothing is accepted from then on. Returns at once.
    pub fn condemn(&self, cause: &str) {
        // A stopped engine gives no more answers.
        let _ = self.commands.send(Command::Condemn(cause.to_owned()));
    }

    /// Waits until the engine has stopped or died.
    pub async fn stopped(&self) {
        self.shared.stopped().await;
    }

    /// [`EngineHandle::stopped`] for threads outside async code.
    pub fn wait_stopped(&self) {
        self.shared.wait_stopped();
    }
}

//! What every request handler shares.

use super::asker::Asker;
use super::hosts::Guests;
use super::ignored::Ignored;
use super::large::Turns;
use crate::answer::Answer;
use crate::answer::ends::Ends;
use crate::answer::reading::Reading;
use crate::error::ApiError;
use crate::health::canary::Canary;
use crate::health::{Readiness, Signs, StepLimit};
use crate::http::background::Background;
use crate::http::compactions::Compactions;
use crate::http::dump::file::Dump;
use crate::http::keys::Keys;
use crate::http::retry;
use crate::images::{ImageReader, PlacedImages};
use crate::openai::responses::store::Store;
use crate::process::memory::Guard;
use crate::request::calls::{Loose, Wanted};
use crate::request::compaction::Room;
use crate::request::conversation::{Conversation, Prepared};
use crate::request::generation::GenerationParams;
use crate::request::grammars::{Constrained, GrammarStore};
use crate::request::limits::RequestLimits;
use crate::request::reasoning::ReasoningArgs;
use crate::request::text::Text;
use axum::http::StatusCode;
use monomorph_engine::{EngineHandle, PromptImages, Request, SubmitError};
use monomorph_grammar::Constraint;
use monomorph_model::{ModelSpec, Progress, VisionSpec};
use monomorph_sampling::Sampling;
use monomorph_weights::WeightsRead;
use std::borrow::Cow;
use std::hash::RandomState;
use std::num::NonZero;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// The server's state: what is fixed at the start, and what loading adds.
pub(crate) struct App {
    /// The compiled model.
    pub(crate) spec: &'static ModelSpec,
    /// Its vision tower, of a model that takes images.
    pub(crate) vision: Option<VisionSpec>,
    /// How many ranks it runs on.
    pub(crate) ranks: usize,
    /// Whether it is a profiling build.
    pub(crate) profiling: bool,
    /// The GPU of each; none of a server for a CPU.
    pub(crate) gpu_ordinals: Vec<usize>,
    /// What clients call it.
    pub(crate) model_name: String,
    /// Keys that clients must show.
    pub(crate) keys: Keys,
    /// Origins and host names that are accepted.
    pub(crate) guests: Guests,
    /// The dump of requests and answers, if any.
    pub(crate) dump: Option<Arc<Dump>>,
    /// Counts of fields that were ignored.
    pub(crate) ignored: Ignored,
    /// Counts of conversations that were shortened.
    pub(crate) compactions: Compactions,
    /// Largest body in bytes.
    pub(crate) body_limit: usize,
    /// Whether the weights are random, which every response says.
    pub(crate) dummy: bool,
    /// The forced rate of acceptance of drafts, if any, which every response says.
    pub(crate) forced: Option<String>,
    /// Sampling parameters of requests that name none.
    pub(crate) sampling: Sampling,
    /// Whether models may reason.
    pub(crate) reasoning: ReasoningArgs,
    /// Most tokens of an answer that may call tools and whose request names no limit; `None` is no limit.
    pub(crate) tool_max_tokens: Option<NonZero<usize>>,
    /// Whether calls are constrained to their tools' schemas even if the request does not ask for it.
    pub(crate) hold_calls: bool,
    /// Whether conversations that are too long are shortened, unless a request says otherwise.
    pub(crate) compacts: bool,
    /// How long an answer may take; `None` is no limit.
    pub(crate) request_timeout: Option<Duration>,
    /// How long a step may take before it counts as hanging.
    pub(crate) step_limit: StepLimit,
    /// Guards host memory.
    pub(crate) guard: Guard,
    /// Limits concurrent work on texts.
    pub(crate) turns: Turns,
    /// Stored responses.
    pub(crate) responses: Arc<Store>,
    /// Responses in progress that nobody waits for.
    pub(crate) background: Arc<Background>,
    /// Progress of loading.
    pub(crate) progress: Progress,
    /// When serving began.
    pub(crate) started: Instant,
    /// The same, in seconds since 1970.
    pub(crate) created: u64,
    /// Hashes clients to numbers.
    pub(crate) askers: RandomState,
    /// Why no answer will be finished, once that is so.
    pub(crate) condemned: watch::Sender<Option<String>>,
    /// Deadline of a drain, once one has begun.
    pub(crate) drained: OnceLock<Instant>,
    /// Set once, when the model is loaded.
    pub(crate) ready: OnceLock<Ready>,
}

/// What loading adds.
pub(crate) struct Ready {
    /// The running engine.
    pub(crate) engine: EngineHandle,
    /// Its tokenizer, template and formats.
    pub(crate) text: Arc<Text>,
    /// What prepares images, of a model that takes some.
    pub(crate) images: Option<ImageReader>,
    /// The grammars that constrain answers.
    pub(crate) grammars: Arc<GrammarStore>,
    /// The canary that checks its answers.
    pub(crate) canary: Arc<Canary>,
    /// Canaries of the quant spec that were answered rightly at the start.
    pub(crate) known: usize,
    /// How the tensors of a checkpoint were read.
    pub(crate) reading: Option<WeightsRead>,
}

/// Work for the engine.
pub(crate) struct Begun {
    /// Prompts to answer, each with the path of its field.
    pub(crate) prompts: Vec<PromptIds>,
    /// The parser of answers.
    pub(crate) reading: Reading,
    /// The constraint of each answer, if any.
    pub(crate) constraint: Option<Constraint>,
}

/// A prompt as the engine takes it.
pub(crate) struct PromptIds {
    /// Its path in the body, for errors.
    pub(crate) at: Cow<'static, str>,
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// The images among them.
    pub(crate) images: PromptImages,
}

impl App {
    /// The loaded model, or 503.
    pub(crate) fn ready(&self) -> Result<&Ready, ApiError> {
        self.ready.get().ok_or_else(|| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "loading", "the model is still being loaded")
        })
    }

    /// Whether a request would be answered, from what is known at this moment.
    pub(crate) fn readiness(&self) -> Readiness {
        let Some(Ready { engine, canary, .. }) = self.ready.get() else { return Readiness::Loading };
        Signs::of(engine.health(), &engine.stats(), canary.unanswered(), self.step_limit).read()
    }

    /// The room that a request's conversation is shortened to, if it is to be.
    pub(crate) fn room(&self, ready: &Ready, params: &GenerationParams) -> Option<Room> {
        let compacts = params.compacts.unwrap_or(self.compacts);
        compacts.then(|| Room::of(ready.engine.context(), params.max_tokens))
    }

    /// Refuses requests while host memory is short.
    fn check_memory(&self) -> Result<(), ApiError> {
        let Some(shortage) = self.guard.shortage() else { return Ok(()) };
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "memory", shortage);
        Err(ApiError { retry_after: Some(retry::SHORTAGE_SECONDS), ..error })
    }

    /// Refuses a prompt that has no tokens, or leaves no room for an answer; `at` is its path in the body.
    fn check_length(&self, ready: &Ready, at: &str, ids: &[u32]) -> Result<(), ApiError> {
        let context = ready.engine.context();
        let error = match ids.len() {
            0 => SubmitError::PromptEmpty,
            prompt if prompt >= context => SubmitError::PromptTooLong { prompt, context },
            _ => return Ok(()),
        };
        Err(self.refusal(ready, error, at))
    }

    /// Fetches the images of a conversation that are elsewhere; what is returned claims memory for them.
    pub(crate) async fn fetch(
        &self,
        ready: &Ready,
        conversation: &mut Conversation,
    ) -> Result<Option<Arc<OwnedSemaphorePermit>>, ApiError> {
        match &ready.images {
            Some(reader) => reader.fetch(&mut conversation.images, conversation.at, || wait(ready)).await,
            None => Ok(None),
        }
    }

    /// Decodes the images of a prompt, whose tokens are these, once nothing else is known to be wrong with
    /// it; `at` is its path in the body.
    pub(crate) async fn decode(
        &self,
        ready: &Ready,
        at: &str,
        ids: &[u32],
        images: PlacedImages,
    ) -> Result<PromptImages, ApiError> {
        let Some(reader) = ready.images.as_ref().filter(|_| !images.is_empty()) else {
            return Ok(PromptImages::default());
        };
        self.check_memory()?;
        self.check_length(ready, at, ids)?;
        reader.decode(images, at, || wait(ready)).await
    }

    /// Submits prompts to the engine, each for as many answers as are generated: all of them or none. The
    /// answers are in the order of the prompts. `max_tokens` is the endpoint's default for requests that name
    /// none.
    pub(crate) async fn begin(
        &self,
        ready: &Ready,
        begun: Begun,
        params: &GenerationParams,
        asker: Asker,
        max_tokens: usize,
    ) -> Result<Vec<Answer>, ApiError> {
        self.check_memory()?;
        let biases = if params.biases.takes_long() {
            let (biases, text) = (params.biases.clone(), Arc::clone(&ready.text));
            self.turns.take(0, move || biases.resolve(&text.tokenizer)).await??
        } else {
            params.biases.clone().resolve(&ready.text.tokenizer)?
        };
        let Begun { prompts, reading, constraint } = begun;
        let mut stop_ids = params.stop_ids.clone();
        if !params.ignore_eos {
            stop_ids.extend_from_slice(ready.text.tokenizer.end_ids());
        }
        let mut sampling = params.sampling.clone();
        if params.best_of.is_some() {
            // What the best are chosen by.
            sampling.top_logprobs.get_or_insert(0);
        }
        let request = Request {
            prompt: Vec::new(),
            images: PromptImages::default(),
            max_tokens: params.max_tokens.unwrap_or(max_tokens),
            sampling,
            biases,
            stop_ids,
            ignore_eos: params.ignore_eos,
            prompt_logprobs: params.prompt_logprobs,
            constraint,
            priority: params.priority,
            client: asker.client(params.user.as_deref(), &self.askers),
        };
        // Refuses before anything is submitted.
        for PromptIds { at, ids, .. } in &prompts {
            self.check_length(ready, at, ids)?;
        }
        let mut answers = Vec::with_capacity(prompts.len() * params.generated());
        for PromptIds { at, ids, images } in prompts {
            let prompt_tokens = ids.len();
            let first = params.prompt_logprobs.and_then(|_| ids.first().copied());
            let told: Option<Arc<[u32]>> = params.token_ids.then(|| ids.as_slice().into());
            let request = Request { prompt: ids, images, ..request.clone() };
            // A prompt's answer does not depend on the other prompts: each starts from the request's seed.
            for (choice, mut request) in (0..).zip(std::iter::repeat_n(request, params.generated())) {
                request.sampling.seed = request.sampling.seed.wrapping_add(choice);
                // If one is refused, the others are dropped and so cancelled.
                let generation =
                    ready.engine.submit(request).map_err(|error| self.refusal(ready, error, &at))?;
                let (tokenizer, stops) = (&ready.text.tokenizer, params.stops.clone());
                let (reading, limit) = (reading.clone(), self.request_timeout);
                let ends = Ends::new(limit, self.condemned.subscribe());
                let answer = Answer::new(generation, tokenizer, reading, stops, prompt_tokens, ends);
                let answer = answer.with_prompt(told.clone()).with_echoed(first);
                answers.push(answer.with_compacted(params.compacted.map_or(0, |it| it.tokens)));
            }
        }
        Ok(answers)
    }

    /// The constraint of a request's answer, if any: a format, the form of its calls and the schemas of their
    /// arguments, and a budget for the reasoning before it, where the model marks that.
    pub(crate) async fn constraint(
        &self,
        ready: &Ready,
        params: &GenerationParams,
        prepared: &Prepared,
    ) -> Result<Constrained, ApiError> {
        let Prepared { ids, reading, calls, share, .. } = prepared;
        if let Some((field, _)) = params.reasoning_budget {
            if ready.text.reasoning.is_none() {
                return Err(ApiError::unsupported(field, "this model does not reason"));
            }
            if !self.reasoning.is_on() {
                let message = format!("`{field}`: this server was started with --reasoning off");
                return Err(ApiError { code: "unsupported_parameter", ..ApiError::field(field, message) });
            }
        }
        let room = ready.engine.context().saturating_sub(ids.len());
        let max_tokens = params.max_tokens.map_or(room, |asked| asked.min(room));
        let asked = params.reasoning_budget.map(|(_, budget)| budget);
        // A budget makes end ids end the answer, which a request may ask to ignore.
        let budgeted = params.format.is_some() || !params.ignore_eos;
        let opened = (budgeted && !reading.is_plain()).then(|| reading.in_reasoning());
        let reasoning = opened.map(|opened| (opened, self.reasoning.budget(asked, *share, max_tokens)));
        let wanted = |calls: &&Wanted| {
            let asked = self.hold_calls || calls.required || calls.is_strict() || params.format.is_some();
            asked && !params.ignore_eos
        };
        let calls = calls.as_ref().filter(wanted);
        match (&params.format, calls, reasoning) {
            (None, None, None | Some((_, None))) => Ok((None, Loose::new())),
            (format, calls, reasoning) => ready.grammars.compile(format.as_ref(), calls, reasoning).await,
        }
    }

    /// The error for a prompt that the engine refused, with what the client can do about it; `at` is its path
    /// in the body.
    fn refusal(&self, ready: &Ready, error: SubmitError, at: &str) -> ApiError {
        let wait = match error {
            SubmitError::QueueFull { waiting, .. } => {
                Some(retry::seconds(waiting, ready.engine.stats().departures_per_second))
            }
            SubmitError::Draining => self.drained.get().map(|end| retry::until(*end)),
            _ => None,
        };
        let refusal = ApiError::of_prompt(at, error);
        let readiness = self.readiness();
        let message = match readiness.cause() {
            Some(cause) => format!("{}: {cause}", refusal.message),
            None => refusal.message,
        };
        ApiError { message, retry_after: wait.or(refusal.retry_after), ..refusal }
    }

    /// What requests are read against.
    pub(crate) fn limits(&self, ready: &Ready) -> RequestLimits {
        RequestLimits {
            context: ready.engine.context(),
            vocabulary: self.spec.vocabulary,
            on_gpu: self.spec.hardware.cuda.is_some(),
            images: self.vision.is_some(),
            sampling: self.sampling.clone(),
        }
    }

    /// The names of the model served; answers use the first.
    pub(crate) fn names(&self) -> [&str; 3] {
        [&self.model_name, self.spec.model, self.spec.target]
    }

    /// Refuses a model that is not the one served; a request without a model means that one.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let Some(name) = name.filter(|name| !self.names().contains(name)) else { return Ok(()) };
        let message = format!("there is no model {name:?} here; this server has {:?}", self.model_name);
        let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Err(ApiError { param: Some("model".to_owned()), ..error })
    }
}

/// How long a client is to wait that found no room: until one of those before it is answered.
fn wait(ready: &Ready) -> NonZero<u32> {
    let stats = ready.engine.stats();
    retry::seconds(stats.running + stats.waiting, stats.departures_per_second)
}

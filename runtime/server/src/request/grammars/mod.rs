//! Grammars over the model's tokens: made on first use, compiled beside running requests, and cached for the
//! next turn.

mod kept;
pub(crate) mod trial;

use self::kept::Kept;
use self::trial::Trials;
use crate::error::ApiError;
use crate::request::calls::{Loose, Wanted};
use crate::request::format::Format;
use crate::request::text::Text;
use axum::http::StatusCode;
use monomorph_grammar::{
    Constraint, GrammarError, Grammars, Openers, Patience, Tags, Thinking, Token, Trial,
};
use monomorph_model::ModelSpec;
use monomorph_text::{ReasoningFormat, Special, TextError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

/// Grammars that are compiled at one time: each takes a processor that steps want too.
const COMPILED_AT_ONCE: usize = 2;
/// Longest chain of grammars that wait to be compiled.
const MOST_WAITING: usize = 64;
/// Compiled grammars that are kept, and bytes that they take with what they were compiled from.
const KEPT: usize = 32;
const KEPT_BYTES: usize = 64 << 20;
/// Bytes that one may take which was too small to be tried.
const SMALL_BYTES: usize = 1 << 20;

/// An answer's constraint, if any, and the paths of the parts of tools' schemas left out of it.
pub(crate) type Constrained = (Option<Constraint>, Loose);

/// How often as long as a grammar may take to compile it may wait for its turn.
const WAITS: u32 = 2;

/// How long grammars are compiled.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct GrammarArgs {
    /// Seconds that a schema or grammar of a request may take to compile; one that takes longer is refused.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub grammar_timeout: f64,
}

/// Seconds of which a duration can be made.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=600.0).contains(seconds));
    seconds.ok_or_else(|| format!("`{text}` must be seconds, from 0.1 to 600"))
}

/// Tables that all grammars share, made once.
struct Made {
    grammars: Grammars,
    /// Where grammars are tried that are not small.
    trials: Arc<dyn Trial>,
    /// Of a model that marks its reasoning.
    tags: Option<Arc<Tags>>,
    /// Of a model that calls tools.
    openers: Option<Arc<Openers>>,
}

/// The grammars that can constrain a model's answers.
pub(crate) struct GrammarStore {
    spec: &'static ModelSpec,
    text: Arc<Text>,
    made: OnceLock<Result<Made, String>>,
    /// Cached grammars, without reasoning, which differs from answer to answer.
    kept: Mutex<Kept<(Constraint, Loose)>>,
    compiled: AtomicU64,
    found: AtomicU64,
    limit: Duration,
    turns: Arc<Semaphore>,
    waiting: Semaphore,
    /// Whether the server is stopping.
    stopped: watch::Sender<bool>,
}

/// Aborts a compilation when its client has gone.
struct Waits(Arc<Patience>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl GrammarStore {
    /// Grammars for a model and its text side, made on first use: they take memory, and most servers never
    /// need one.
    pub(crate) fn new(spec: &'static ModelSpec, text: &Arc<Text>, args: GrammarArgs) -> Arc<GrammarStore> {
        Arc::new(GrammarStore {
            spec,
            text: Arc::clone(text),
            made: OnceLock::new(),
            kept: Mutex::new(Kept::new(KEPT, KEPT_BYTES)),
            compiled: AtomicU64::new(0),
            found: AtomicU64::new(0),
            limit: Duration::from_secs_f64(args.grammar_timeout),
            turns: Arc::new(Semaphore::new(COMPILED_AT_ONCE)),
            waiting: Semaphore::new(MOST_WAITING),
            stopped: watch::Sender::new(false),
        })
    }

    /// Those made, or being made, or made now.
    fn made(&self) -> Result<&Made, String> {
        let made = self.made.get_or_init(|| {
            let began = Instant::now();
            let (tokenizer, spec) = (&self.text.tokenizer, self.spec);
            let token = |id| {
                let bytes = tokenizer.token_bytes(id)?;
                Some(Token { bytes, special: tokenizer.is_special(id) })
            };
            let ends: Vec<u32> = spec.protocol.stop_ids.iter().chain(tokenizer.end_ids()).copied().collect();
            let grammars = Grammars::new(spec.vocabulary, token, &ends)?;
            let tags = self.text.reasoning.map(|format| self.tags(format, &grammars)).transpose();
            let tags = tags.map_err(|error| error.to_string())?;
            let openers = self.text.form().map(|form| grammars.openers(&form.openers()));
            let trials = Arc::new(Trials::new(&self.text, spec.vocabulary, &ends));
            tracing::info!(took = ?began.elapsed(), "grammars are ready");
            Ok(Made { grammars, trials, tags, openers })
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// Stops: compilations are aborted where possible, and none begins.
    pub(crate) fn stop(&self) {
        self.turns.close();
        self.stopped.send_replace(true);
    }

    /// How many grammars are being compiled.
    pub(crate) fn running(&self) -> usize {
        COMPILED_AT_ONCE - self.turns.available_permits().min(COMPILED_AT_ONCE)
    }

    /// How many grammars were compiled, and how many were there already.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.compiled, &self.found].map(|count| count.load(Ordering::Relaxed))
    }

    /// The cached result for `key`, or a new one. Each caller gets a clone; concurrent first requests each
    /// compile. Errors are not cached: few clients repeat them.
    fn kept(
        &self,
        key: String,
        patience: &Patience,
        make: impl FnOnce() -> Result<(Constraint, Loose), GrammarError>,
    ) -> Result<(Constraint, Loose), GrammarError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept().get(&key) {
            self.found.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let made = make()?;
        kept().keep(key, made.clone(), SMALL_BYTES + patience.bytes());
        Ok(made)
    }

    fn tags(&self, format: ReasoningFormat, grammars: &Grammars) -> Result<Arc<Tags>, TextError> {
        let [open, close] = format.tags().map(|tag| self.text.tokenizer.encode(tag, Special::Parse));
        Ok(grammars.tags(&open?, &close?))
    }

    /// The constraint of an answer with a format, or that may contain calls, behind its reasoning if there is
    /// any, which the prompt may have opened and which may have a budget. `None` where neither applies to the
    /// model. If the client leaves while this waits for its turn, nothing is compiled.
    pub(crate) async fn compile(
        self: &Arc<Self>,
        format: Option<&Format>,
        calls: Option<&Wanted>,
        reasoning: Option<(bool, Option<usize>)>,
    ) -> Result<Constrained, ApiError> {
        let Ok(_place) = self.waiting.try_acquire() else {
            let message = format!(
                "{MOST_WAITING} grammars are waiting to be compiled, which is the limit; try again later"
            );
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message));
        };
        let failed = |what: String| {
            let message = format!("compiling a grammar failed: {what}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "grammar", message)
        };
        let stopped = || {
            let message = "the server is stopping and compiles no more grammars";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", message)
        };
        let Ok(turn) = timeout(self.limit * WAITS, Arc::clone(&self.turns).acquire_owned()).await else {
            let message = "other grammars take so long to compile that this one did not get its turn";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message));
        };
        let turn = turn.map_err(|_| stopped())?;
        // The first grammar builds the shared tables, in time proportional to the vocabulary.
        let store = Arc::clone(self);
        let turn = match self.made.get() {
            Some(_) => turn,
            None => run(turn, move || store.made().map(|_| ())).await.map_err(failed)?.1,
        };
        let trials = self.made().map_err(failed)?.trials.clone();
        let patience = Patience::new(self.limit, Some(trials));
        let waits = Waits(Arc::clone(&patience));
        let (store, source) = (Arc::clone(self), format.map(|format| format.source.clone()));
        let (wanted, patient) = (calls.cloned(), Arc::clone(&patience));
        let work = move || -> Result<Result<Constrained, GrammarError>, String> {
            let began = Instant::now();
            let Made { grammars, tags, openers, .. } = store.made()?;
            let grammars = &grammars.within(&patient);
            let thinking = tags.as_ref().zip(reasoning);
            let thinking = thinking.map(|(tags, (opened, budget))| Thinking::new(tags, opened, budget));
            let compiled = match (wanted.as_ref().zip(openers.as_ref()), &source) {
                (None, None) => return Ok(Ok((thinking.map(|it| grammars.thinking(it)), Loose::new()))),
                (None, Some(source)) => store.kept(format!("{source:?}"), &patient, || {
                    grammars.compile(source).map(|it| (it, Loose::new()))
                }),
                (Some((wanted, openers)), source) => {
                    store.kept(format!("{source:?} {}", wanted.key()), &patient, || {
                        wanted.compile(grammars, openers, source.as_ref())
                    })
                }
            };
            let compiled = compiled.map(|(constraint, loose)| match thinking {
                Some(thinking) => (Some(constraint.after(thinking)), loose),
                None => (Some(constraint), loose),
            });
            let [compiled_ones, found] = store.counts();
            tracing::info!(took = ?began.elapsed(), refused = compiled.is_err(), compiled = compiled_ones, found, "a grammar for an answer");
            Ok(compiled)
        };
        let mut stop = self.stopped.subscribe();
        let compiled = tokio::select! {
            compiled = timeout(self.limit, run(turn, work)) => compiled,
            _ = stop.changed() => return Err(stopped()),
        };
        drop(waits);
        let compiled = match compiled {
            Ok(compiled) => compiled.map_err(failed)?.0,
            Err(_) => Err(patience.over()),
        };
        compiled.map_err(|error| match (format, calls) {
            (_, Some(_)) if error.path.starts_with("tools[") => unusable(&error.path, &error.message),
            (Some(format), _) => format.refusal(error),
            (None, Some(_)) => unusable("tools", &error.message),
            (None, None) => failed(error.to_string()),
        })
    }
}

/// Runs work on its own thread, which keeps its turn until it ends, even if its client leaves. The end of the
/// process does not wait for it.
async fn run<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit), String> {
    let (tell, told) = oneshot::channel();
    let work = move || {
        let done = work();
        let _ = tell.send(done.map(|done| (done, turn)));
    };
    std::thread::Builder::new().name("grammars".to_owned()).spawn(work).map_err(|error| error.to_string())?;
    told.await.map_err(|_| "it panicked".to_owned())?
}

/// The error for a field that cannot be enforced.
fn unusable(path: &str, message: &str) -> ApiError {
    ApiError { code: "unsupported_grammar", ..ApiError::at(path, message) }
}

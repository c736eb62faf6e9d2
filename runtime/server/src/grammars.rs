//! Grammars of the model's tokens: made when first asked for, compiled beside the requests that work, and kept for the next turn.

use crate::calls::{Loose, Wanted};
use crate::http::error::ApiError;
use crate::kept::Kept;
use crate::openai::format::Format;
use crate::text::Text;
use axum::http::StatusCode;
use monomorph_grammar::{Constraint, GrammarError, Grammars, Openers, Tags, Thinking, Token};
use monomorph_model::ModelSpec;
use monomorph_text::{ReasoningFormat, Special, TextError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tokio::sync::Semaphore;

/// Grammars that are compiled at one time: each takes a processor that steps want too.
const COMPILED_AT_ONCE: usize = 2;
/// Longest chain of grammars that wait to be compiled.
const MOST_WAITING: usize = 64;
/// Compiled grammars that are kept, and bytes of what they were compiled from.
const KEPT: usize = 32;
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// What an answer is held to, if anything, and what of its tools' schemas is left out of that.
pub(crate) type Held = (Option<Constraint>, Loose);

/// What is made once.
struct Made {
    grammars: Grammars,
    /// Of a model that marks its reasoning.
    tags: Option<Arc<Tags>>,
    /// Of a model that calls tools.
    openers: Option<Arc<Openers>>,
}

/// What answers can be held to, of one model.
pub(crate) struct GrammarStore {
    spec: &'static ModelSpec,
    text: Arc<Text>,
    made: OnceLock<Result<Made, String>>,
    /// Without reasoning, which differs from answer to answer.
    kept: Mutex<Kept<(Constraint, Loose)>>,
    compiled: AtomicU64,
    found: AtomicU64,
    turns: Semaphore,
    waiting: Semaphore,
}

impl GrammarStore {
    /// Of a model and its text side. They are made when somebody asks for one: they take memory, and most servers are never asked.
    pub(crate) fn new(spec: &'static ModelSpec, text: &Arc<Text>) -> Arc<GrammarStore> {
        Arc::new(GrammarStore {
            spec,
            text: Arc::clone(text),
            made: OnceLock::new(),
            kept: Mutex::new(Kept::new(KEPT, KEPT_BYTES)),
            compiled: AtomicU64::new(0),
            found: AtomicU64::new(0),
            turns: Semaphore::new(COMPILED_AT_ONCE),
            waiting: Semaphore::new(MOST_WAITING),
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
            tracing::info!(took = ?began.elapsed(), "grammars are ready");
            Ok(Made { grammars, tags, openers })
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// How many grammars were compiled, and how many were there already.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.compiled, &self.found].map(|count| count.load(Ordering::Relaxed))
    }

    /// What was kept of `key`, or is made now. Each gets a clone, which goes its own way; who asks at the same time for the first time
    /// compiles it for himself. An error is not kept: it costs as much again, and nobody repeats it for long.
    fn kept(
        &self,
        key: String,
        make: impl FnOnce() -> Result<(Constraint, Loose), GrammarError>,
    ) -> Result<(Constraint, Loose), GrammarError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept().get(&key) {
            self.found.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let made = make()?;
        kept().keep(key, made.clone());
        Ok(made)
    }

    fn tags(&self, format: ReasoningFormat, grammars: &Grammars) -> Result<Arc<Tags>, TextError> {
        let [open, close] = format.tags().map(|tag| self.text.tokenizer.encode(tag, Special::Parse));
        Ok(grammars.tags(&open?, &close?))
    }

    /// What an answer is held to that is to have a format, or may have calls in it; behind its reasoning, where there may be some, which the prompt opened or did
    /// not, and which may have a budget. Nothing where neither means anything to the model. A client that goes away while this waits for
    /// its turn is compiled nothing.
    pub(crate) async fn compile(
        self: &Arc<Self>,
        format: Option<&Format>,
        calls: Option<&Wanted>,
        reasoning: Option<(bool, Option<usize>)>,
    ) -> Result<Held, ApiError> {
        let Ok(_place) = self.waiting.try_acquire() else {
            let message = format!("{MOST_WAITING} grammars are being compiled, and no more may wait");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message));
        };
        let stopped =
            |_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", "no more grammars are compiled");
        let _turn = self.turns.acquire().await.map_err(stopped)?;
        let (store, source) = (Arc::clone(self), format.map(|format| format.source.clone()));
        let wanted = calls.cloned();
        let work = move || -> Result<Result<Held, GrammarError>, String> {
            let began = Instant::now();
            let Made { grammars, tags, openers } = store.made()?;
            let thinking = tags.as_ref().zip(reasoning);
            let thinking = thinking.map(|(tags, (opened, budget))| Thinking::new(tags, opened, budget));
            let compiled = match (wanted.as_ref().zip(openers.as_ref()), &source) {
                (None, None) => return Ok(Ok((thinking.map(|it| grammars.thinking(it)), Loose::new()))),
                (None, Some(source)) => store
                    .kept(format!("{source:?}"), || grammars.compile(source).map(|it| (it, Loose::new()))),
                (Some((wanted, openers)), source) => store
                    .kept(format!("{source:?} {}", wanted.key()), || {
                        wanted.compile(grammars, openers, source.as_ref())
                    }),
            };
            let compiled = compiled.map(|(constraint, loose)| match thinking {
                Some(thinking) => (Some(constraint.after(thinking)), loose),
                None => (Some(constraint), loose),
            });
            let [compiled_ones, found] = store.counts();
            tracing::info!(took = ?began.elapsed(), refused = compiled.is_err(), compiled = compiled_ones, found, "a grammar for an answer");
            Ok(compiled)
        };
        let failed = |what: String| {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "grammar",
                format!("compiling a grammar failed: {what}"),
            )
        };
        let compiled = tokio::task::spawn_blocking(work).await.map_err(|error| failed(error.to_string()))?;
        compiled.map_err(failed)?.map_err(|error| match (format, calls) {
            (_, Some(_)) if error.path.starts_with("tools[") => unusable(&error.path, &error.message),
            (Some(format), _) => format.refusal(error),
            (None, Some(_)) => unusable("tools", &error.message),
            (None, None) => failed(error.to_string()),
        })
    }
}

/// The error for a field that cannot be held to.
fn unusable(path: &str, message: &str) -> ApiError {
    let message = format!("`{path}` {message}");
    ApiError { code: "unsupported_grammar", ..ApiError::field(path, message) }
}

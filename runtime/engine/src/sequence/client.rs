//! A sequence's client channel: events, signals, times and the log.

use crate::latencies::Latencies;
use crate::request::{Event, FinishReason, Timings};
use crate::shared::QueuePlace;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tracing::Span;

/// The client channel.
#[derive(Debug)]
pub(crate) struct Client {
    pub events: UnboundedSender<Event>,
    pub signals: Arc<Signals>,
}

/// Signals between a client and the engine besides events.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub interest: Interest,
    /// Tokens of the prompt that were in the cache when it was admitted first.
    pub cached_tokens: AtomicUsize,
}

/// Whether the client still wants the rest of the answer.
#[derive(Debug, Default)]
pub(crate) struct Interest(AtomicU8);

impl Interest {
    const CANCELLED: u8 = 1;
    const SATISFIED: u8 = 2;

    /// The rest is not wanted.
    pub fn cancel(&self) {
        self.0.store(Self::CANCELLED, Ordering::Relaxed);
    }

    /// The client has all it wants.
    pub fn satisfy(&self) {
        self.0.store(Self::SATISFIED, Ordering::Relaxed);
    }

    /// Why the client wants no more tokens, if it cancelled.
    fn lost(&self) -> Option<FinishReason> {
        match self.0.load(Ordering::Relaxed) {
            Self::CANCELLED => Some(FinishReason::Cancelled),
            Self::SATISFIED => Some(FinishReason::Satisfied),
            _ => None,
        }
    }
}

impl Client {
    /// Sends an event. A client that has gone is noticed before the next step.
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Why the client wants no more tokens; `None` while it does.
    pub fn gone(&self) -> Option<FinishReason> {
        self.signals.interest.lost().or_else(|| self.events.is_closed().then_some(FinishReason::Cancelled))
    }
}

/// When the phases of a generation began.
#[derive(Debug)]
struct Clock {
    submitted: Instant,
    /// The first admission: a pre-empted sequence does not queue again.
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// A sequence's reports: events to its client, times to the histograms, lines to the log.
#[derive(Debug)]
pub(crate) struct Reporter {
    client: Client,
    clock: Clock,
    /// Its place in the queue, until it is admitted first.
    place: Option<QueuePlace>,
    /// Histograms of its times; `None` for a canary, which is not counted.
    latencies: Option<Arc<Latencies>>,
    span: Span,
}

impl Reporter {
    /// The reporter of a sequence submitted now. A canary has neither a place nor latencies.
    pub fn new(
        client: Client,
        place: Option<QueuePlace>,
        latencies: Option<Arc<Latencies>>,
        span: Span,
    ) -> Reporter {
        let clock = Clock { submitted: Instant::now(), admitted: None, first_token: None, last_token: None };
        Reporter { client, clock, place, latencies, span }
    }

    /// Whether the sequence only checks the engine's health.
    pub fn is_canary(&self) -> bool {
        self.latencies.is_none()
    }

    /// Calls `event` in this request's log span. Canaries run as often as health is checked, so they are not
    /// logged.
    pub fn log(&self, event: impl FnOnce()) {
        if !self.is_canary() {
            self.span.in_scope(event);
        }
    }

    pub fn tell(&self, event: Event) {
        self.client.tell(event);
    }

    pub fn gone(&self) -> Option<FinishReason> {
        self.client.gone()
    }

    pub fn into_client(self) -> Client {
        self.client
    }

    /// Whether it was admitted before.
    pub fn was_admitted(&self) -> bool {
        self.clock.admitted.is_some()
    }

    /// When its last token came, if one has.
    pub fn last_token(&self) -> Option<Instant> {
        self.clock.last_token
    }

    /// Records how many of the prompt's tokens were found in the cache.
    pub fn found(&self, tokens: usize) {
        if !self.was_admitted() {
            self.client.signals.cached_tokens.store(tokens, Ordering::Relaxed);
        }
    }

    /// Records an admission; the first ends its wait in the queue.
    pub fn admitted(&mut self, now: Instant) {
        self.place = None;
        if self.was_admitted() {
            self.log(|| tracing::info!("admitted again"));
            return;
        }
        self.clock.admitted = Some(now);
        let queue = now - self.clock.submitted;
        self.log(|| tracing::info!(?queue, "prefill"));
        if let Some(latencies) = &self.latencies {
            latencies.queue.observe(queue.as_secs_f64());
        }
    }

    /// Records the arrival of tokens.
    pub fn tokens_came(&mut self, now: Instant) {
        let Clock { submitted, admitted, last_token, .. } = self.clock;
        self.clock.last_token = Some(now);
        if let Some(before) = last_token {
            if let Some(latencies) = &self.latencies {
                latencies.inter_token.observe((now - before).as_secs_f64());
            }
            return;
        }
        self.clock.first_token = Some(now);
        let prefill = now - admitted.unwrap_or(submitted);
        self.log(|| tracing::info!(?prefill, "decode"));
        if let Some(latencies) = &self.latencies {
            latencies.time_to_first_token.observe((now - submitted).as_secs_f64());
            latencies.prefill.observe(prefill.as_secs_f64());
        }
    }

    /// Logs, counts and returns the times of a generation that ends now.
    pub fn finished(&self, reason: FinishReason, prompt: usize, generated: usize, now: Instant) -> Timings {
        let Clock { submitted, admitted, first_token, .. } = self.clock;
        let since = |from: Option<Instant>, to: Instant| from.map_or(Duration::ZERO, |from| to - from);
        let timings = Timings {
            queue: admitted.unwrap_or(now) - submitted,
            prefill: since(admitted, first_token.unwrap_or(now)),
            decode: since(first_token, now),
        };
        self.log(|| tracing::info!(?reason, generated, decode = ?timings.decode, "finished"));
        if let (Some(latencies), true) = (&self.latencies, reason != FinishReason::Cancelled) {
            latencies.end_to_end.observe((now - submitted).as_secs_f64());
            latencies.decode.observe(timings.decode.as_secs_f64());
            latencies.inference.observe((timings.prefill + timings.decode).as_secs_f64());
            if generated > 1 {
                latencies.per_token.observe(timings.decode.as_secs_f64() / (generated - 1) as f64);
            }
            latencies.prompt_tokens.observe(prompt as f64);
            latencies.generated_tokens.observe(generated as f64);
        }
        timings
    }
}

//! One generation in flight: everything the engine knows about a request after it was accepted.

use crate::held::Held;
use crate::latencies::Latencies;
use crate::lookup::Lookup;
use crate::request::{EngineError, Event, FinishReason, Finished, Timings};
use crate::scheduler::{Candidate, Running, Waiting};
use crate::scoring::Scoring;
use crate::shared::Place;
use monomorph_cache::swap::Image;
use monomorph_cache::{Lease, Match, SavePoints};
use monomorph_model::Slot;
use monomorph_sampling::{Biases, Sampled, Sampling, TokenBias, TokenMask, TokenUse};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tracing::Span;

/// A sequence. Its blocks and its slot belong to the engine's pools: see `Forward`.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Prompt, then answer.
    pub tokens: Vec<u32>,
    /// How many of `tokens` were the request's.
    pub prompt: usize,
    /// How many of `tokens` are in the cache: found there when it was admitted, or fed since, in steps in
    /// flight too.
    pub fed: usize,
    /// How many of `tokens` there were when it was admitted.
    pub begun: usize,
    /// Whether no step has fed it since.
    pub begins: bool,
    /// Whether it was fed more than `fed`: drafts that hold, behind the token that ended it.
    pub overran: bool,
    /// Up to where its recurrent state was saved or restored last.
    pub saved: usize,
    /// What was drafted after the last of `tokens`, by the model or by `lookup`. Of sequences that run and
    /// that a token was sampled for since they were admitted, where drafts are verified: then there is one
    /// token to feed, and these with it.
    pub drafts: Vec<u32>,
    /// Where the model verifies what the engine drafts.
    pub lookup: Option<Lookup>,
    /// Tokens that steps in flight sample for it: they come after `tokens`.
    pub coming: usize,
    /// The last step that feeds it; 0 is none.
    pub last_step: u64,
    /// Most tokens it may come to have.
    pub limit: usize,
    /// Requests are numbered as they come.
    pub number: u64,
    /// Lower is earlier.
    pub priority: i64,
    /// Who asked: a number of the server's.
    pub account: u64,
    /// How many of its tokens were in the cache when it was looked up last, while it waits.
    pub found: usize,
    /// For how many steps it has waited for what another computes of its prompt.
    pub held: usize,
    pub sampling: Sampling,
    pub biases: Biases,
    /// `None` unless the sampler asks for it.
    pub history: Option<History>,
    /// What its answer is held to, if anything.
    pub held_to: Option<Box<Held>>,
    /// While its prompt is fed to tell the log-probabilities of its tokens. Then it is fed anew.
    pub scoring: Option<Scoring>,
    pub stop_ids: Vec<u32>,
    pub lease: Lease,
    /// What it had computed, while it waits to go on from there.
    pub image: Option<Image>,
    /// `Some` while it runs.
    pub slot: Option<Slot>,
    /// Its place in the queue, until it is admitted first.
    pub place: Option<Place>,
    pub clock: Clock,
    pub client: Client,
    /// Where its times are counted; `None` of a canary, which is in no count.
    pub latencies: Option<Arc<Latencies>>,
    /// What is logged of it.
    pub span: Span,
}

/// When the phases of a generation began.
#[derive(Debug)]
pub(crate) struct Clock {
    pub submitted: Instant,
    /// The first admission: a pre-empted sequence does not queue again.
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
}

/// The way back to who asked.
#[derive(Debug)]
pub(crate) struct Client {
    pub events: UnboundedSender<Event>,
    pub signals: Arc<Signals>,
}

/// What a client and the engine tell each other besides events.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub interest: Interest,
    /// Tokens of the prompt that were in the cache when it was admitted first.
    pub cached_tokens: AtomicUsize,
}

/// Whether the client wants the rest of the answer.
#[derive(Debug, Default)]
pub(crate) struct Interest(AtomicU8);

impl Interest {
    const CANCELLED: u8 = 1;
    const SATISFIED: u8 = 2;

    /// The rest is not wanted.
    pub fn cancel(&self) {
        self.0.store(Self::CANCELLED, Ordering::Relaxed);
    }

    /// What there is, is all that was wanted.
    pub fn satisfy(&self) {
        self.0.store(Self::SATISFIED, Ordering::Relaxed);
    }

    /// Why the rest is not wanted, where the client said so.
    fn lost(&self) -> Option<FinishReason> {
        match self.0.load(Ordering::Relaxed) {
            Self::CANCELLED => Some(FinishReason::Cancelled),
            Self::SATISFIED => Some(FinishReason::Satisfied),
            _ => None,
        }
    }
}

impl Client {
    /// Tells the client. One that is gone hears nothing, and is swept up before the next step.
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Why nobody wants the rest of the answer; `None` while somebody does.
    pub fn gone(&self) -> Option<FinishReason> {
        self.signals.interest.lost().or_else(|| self.events.is_closed().then_some(FinishReason::Cancelled))
    }
}

impl Sequence {
    /// Tokens generated that the host knows.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Its tokens when the steps in flight are done, if none of them ends it. While its prompt is scored, all
    /// but the last: nothing is asked of the logits behind that.
    pub fn length(&self) -> usize {
        match self.scoring {
            Some(_) => self.prompt - 1,
            None => self.tokens.len() + self.coming,
        }
    }

    /// The position of the next token in the request's random stream.
    pub fn draw(&self) -> u64 {
        (self.generated() + self.coming) as u64
    }

    /// Whether only the token sampled last is to be fed.
    pub fn decodes(&self) -> bool {
        self.draw() > 0 && self.length() - self.fed == 1
    }

    /// Whether what its next token is sampled by is better told when the step that samples it is on its way:
    /// it depends on tokens that are coming, as a history's counts do, biases that look at it, and what an
    /// answer is held to; or is masks, which take a while to compute. (Where drafts are looked up masks are
    /// computed before: they decide which are worth a row.)
    pub fn binds_later(&self) -> bool {
        let counts = self.history.is_some() || self.biases.needs_tokens();
        let held = self.held_to.as_ref().filter(|_| self.lookup.is_none());
        (counts && self.coming > 0) || held.is_some_and(|held| held.free_for() <= self.coming)
    }

    /// Whether the next step may feed it: no token is coming, or the one after it is wanted whatever it is.
    pub fn is_ready(&self) -> bool {
        self.coming == 0 || self.length() < self.limit
    }

    /// What its next token is sampled by beside the logits, in place of what stood there; all its tokens are
    /// known but the drafts, of which a step verifies so many.
    ///
    /// # Errors
    /// When no token may come next.
    pub fn bind_sampling(
        &mut self,
        drafts: usize,
        history: &mut Vec<TokenUse>,
        biases: &mut Vec<Arc<[TokenBias]>>,
        masks: &mut Vec<TokenMask>,
    ) -> Result<(), EngineError> {
        history.clear();
        biases.clear();
        masks.clear();
        if let Some(known) = &self.history {
            history.extend_from_slice(known.uses());
        }
        if !self.biases.is_none() {
            // Behind the tokens known, and behind each draft.
            let mut context = Cow::Borrowed(&self.tokens);
            biases.push(self.biases.after(&context));
            for &draft in &self.drafts[..drafts] {
                if self.biases.needs_tokens() {
                    context.to_mut().push(draft);
                }
                biases.push(self.biases.after(&context));
            }
        }
        if let Some(held) = &mut self.held_to {
            if self.lookup.is_none() {
                held.look_ahead(&self.drafts[..drafts])?;
            }
            masks.extend_from_slice(held.masks(drafts));
        }
        Ok(())
    }

    /// How many of its tokens go through prefill: all that are known when it is admitted, or where `replays`
    /// what was generated before it was pre-empted is decoded again, the prompt only.
    fn prefill(&self, replays: bool) -> usize {
        if replays { self.prompt.min(self.length()) } else { self.length() }
    }

    /// The tokens that it can leave to others: those that go through prefill, where what was generated has
    /// other bits.
    pub fn reusable(&self, replays: bool) -> &[u32] {
        &self.tokens[..self.prefill(replays).min(self.tokens.len())]
    }

    /// The tokens that it can go on behind when it is admitted: what it can leave itself, and while its
    /// prompt is scored no more than is scored already.
    pub fn sought(&self, replays: bool) -> &[u32] {
        match &self.scoring {
            Some(scoring) => &self.tokens[..scoring.scored()],
            None => self.reusable(replays),
        }
    }

    /// Whether a step that feeds it up to `end` tells something of its prompt's tokens: then it wants all
    /// logits.
    pub fn scores(&self, end: usize) -> bool {
        self.scoring.as_ref().is_some_and(|scoring| end > scoring.scored())
    }

    /// As one that waits, and whose client is so far ahead of others.
    pub fn as_candidate(&self, ahead: u64) -> Candidate {
        Candidate {
            front: self.is_canary(),
            priority: self.priority,
            client: self.account,
            ahead,
            prompt: self.tokens.len() - self.found,
            paid: self.clock.admitted.is_some(),
            taken: false,
        }
    }

    /// Microseconds from `now` until its next token is late, if it is to come within `tbt` of the one before.
    fn slack(&self, now: Instant, tbt: Duration) -> Option<u64> {
        let since = match (self.coming, self.clock.last_token) {
            (0, None) => return None,
            (0, Some(last)) => now - last,
            // Its next token but one is meant, and the next comes when the step can begin.
            (_, _) => Duration::ZERO,
        };
        Some(u64::try_from(tbt.saturating_sub(since).as_micros()).unwrap_or(u64::MAX))
    }

    /// Whether a token that comes `now` comes later than `tbt` after the one before.
    pub fn is_late(&self, now: Instant, tbt: Duration) -> bool {
        self.clock.last_token.is_some_and(|last| now - last > tbt)
    }

    /// Those of them that its copy holds.
    pub fn stored(&self, replays: bool) -> &[u32] {
        let reusable = self.reusable(replays);
        &reusable[..self.fed.min(reusable.len())]
    }

    /// As one that runs, and whose state is saved at `saves`; all its blocks come back when it is pre-empted.
    pub fn as_running(
        &self,
        replays: bool,
        saves: Option<&SavePoints>,
        now: Instant,
        tbt: Duration,
    ) -> Running {
        let (tokens, blocks) = (self.length(), self.lease.blocks().len());
        let until = saves.map_or(tokens, |saves| saves.until(self.fed, self.saved, self.begun, tokens));
        Running {
            tokens,
            cached: self.fed,
            prefill: self.prefill(replays).min(until),
            drafts: self.drafts.len(),
            ready: self.is_ready(),
            limit: self.limit,
            blocks,
            returns: blocks,
            scored: self.scoring.is_some(),
            priority: self.priority,
            slack: self.slack(now, tbt),
        }
    }

    /// As one that waits, of whose tokens so much is in the cache.
    pub fn as_waiting(&self, found: &Match, replays: bool, saves: Option<&SavePoints>) -> Waiting {
        let (tokens, cached, prefill) = (self.length(), found.tokens, self.prefill(replays));
        let until = saves.map_or(tokens, |saves| saves.until(cached, cached, prefill, tokens));
        let (prefill, priority) = (prefill.min(until), self.priority);
        let (shared, limit) = (found.in_use, self.limit);
        Waiting {
            tokens,
            cached,
            shared,
            prefill,
            drafts: 0,
            limit,
            scored: self.scoring.is_some(),
            priority,
        }
    }

    /// As one whose copy is there, and so much of that in the cache, too.
    pub fn as_resuming(&self, found: &Match, replays: bool, saves: Option<&SavePoints>) -> Waiting {
        let tokens = self.length();
        let until = saves.map_or(tokens, |saves| saves.until(self.fed, self.saved, self.begun, tokens));
        Waiting {
            tokens,
            cached: self.fed,
            shared: found.in_use,
            prefill: self.prefill(replays).min(until),
            drafts: self.drafts.len(),
            limit: self.limit,
            scored: self.scoring.is_some(),
            priority: self.priority,
        }
    }

    /// Goes on from its copy, in another place.
    pub fn resume(&mut self, lease: Lease, now: Instant) {
        self.admit(now);
        self.lease = lease;
        self.begins = true;
    }

    /// Forgets what was computed: it is fed again from its first token.
    pub fn forget(&mut self) {
        self.image = None;
        self.fed = 0;
        // They were drafted from what is forgotten; prefilling it again brings others.
        self.drafts.clear();
    }

    /// Begins to run, or to run again, with a lease of what was found.
    pub fn begin(&mut self, lease: Lease, found: &Match, replays: bool, now: Instant) {
        if self.clock.admitted.is_none() {
            self.client.signals.cached_tokens.store(found.tokens, Ordering::Relaxed);
        }
        self.admit(now);
        self.lease = lease;
        (self.fed, self.saved, self.found) = (found.tokens, found.tokens, found.tokens);
        (self.begun, self.begins) = (self.prefill(replays), true);
    }

    /// Whether it only asks after the engine's health.
    pub fn is_canary(&self) -> bool {
        self.latencies.is_none()
    }

    /// Logs what `event` logs, as of this request. Canaries come as often as health is asked for: of them
    /// nothing is logged.
    pub fn log(&self, event: impl FnOnce()) {
        if !self.is_canary() {
            self.span.in_scope(event);
        }
    }

    /// Notes an admission, of which the first ends its wait in the queue.
    fn admit(&mut self, now: Instant) {
        self.place = None;
        if self.clock.admitted.is_some() {
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

    /// Notes that tokens came.
    fn tokens_came(&mut self, now: Instant) {
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

    /// Takes the next token of the answer: tells the client, or says why the answer is over, or cannot go on.
    fn push(&mut self, sampled: Sampled, now: Instant) -> Option<Result<Finished, EngineError>> {
        let id = sampled.id;
        self.tokens.push(id);
        if self.stop_ids.contains(&id) {
            let finished = self.finished(FinishReason::Stop { id }, now);
            return Some(Ok(Finished { stop: Some(sampled), ..finished }));
        }
        if let Some(Err(why)) = self.held_to.as_mut().map(|held| held.take(id)) {
            return Some(Err(why.into()));
        }
        if let Some(history) = &mut self.history {
            history.generated(id);
        }
        self.client.tell(Event::Token(sampled));
        (self.tokens.len() >= self.limit).then(|| Ok(self.finished(FinishReason::Length, now)))
    }

    /// Takes what a step sampled for it, which is at least one token, and what was drafted after that; how
    /// many of the tokens it took, and the end if one of them is the last, or why none can follow.
    pub fn take(
        &mut self,
        sampled: impl IntoIterator<Item = Sampled>,
        drafts: Vec<u32>,
        now: Instant,
    ) -> (u64, Option<Result<Finished, EngineError>>) {
        self.coming -= 1;
        let fed = std::mem::replace(&mut self.drafts, drafts);
        self.tokens_came(now);
        let known = self.tokens.len();
        let mut sampled = sampled.into_iter();
        let mut end = sampled.find_map(|one| self.push(one, now));
        self.overran = sampled.next().is_some();
        let taken = self.tokens.len() - known;
        // All but the last were fed as drafts.
        self.fed += taken - 1;
        if let (Some(lookup), None) = (&mut self.lookup, &end) {
            if !fed.is_empty() {
                lookup.judge(taken - 1);
            }
            lookup.learn(&self.tokens);
            self.drafts = lookup.draft(&self.tokens, self.tokens.len() + 1 == self.limit);
            match self.held_to.as_mut().map(|held| held.look_ahead(&self.drafts)) {
                // What was looked up and cannot come is not worth a row.
                Some(Ok(false)) => self.drafts.clear(),
                None | Some(Ok(true)) => {}
                Some(Err(why)) => end = Some(Err(why.into())),
            }
        }
        (taken as u64, end)
    }

    /// Takes the logits behind the tokens `fed` and tells the client what they say of its prompt; the end if
    /// that was all that was wanted.
    pub fn score(&mut self, fed: Range<usize>, logits: &mut [f32], now: Instant) -> Option<Finished> {
        let (scoring, prompt) = (self.scoring.as_mut()?, self.prompt);
        let scores = scoring.take(&self.tokens[..prompt], fed, logits);
        self.client.tell(Event::Prompt(scores));
        (self.is_scored() && self.limit == prompt).then(|| self.finished(FinishReason::Length, now))
    }

    /// Whether all of its prompt is scored, and it has not been fed anew since.
    pub fn is_scored(&self) -> bool {
        self.scoring.as_ref().is_some_and(|scoring| scoring.scored() + 1 == self.prompt)
    }

    /// The last word on a generation that ends now.
    pub fn finished(&self, reason: FinishReason, now: Instant) -> Finished {
        let Clock { submitted, admitted, first_token, .. } = self.clock;
        let since = |from: Option<Instant>, to: Instant| from.map_or(Duration::ZERO, |from| to - from);
        let timings = Timings {
            queue: admitted.unwrap_or(now) - submitted,
            prefill: since(admitted, first_token.unwrap_or(now)),
            decode: since(first_token, now),
        };
        let generated = self.generated();
        self.log(|| tracing::info!(?reason, generated, decode = ?timings.decode, "finished"));
        if let (Some(latencies), true) = (&self.latencies, reason != FinishReason::Cancelled) {
            latencies.end_to_end.observe((now - submitted).as_secs_f64());
            latencies.decode.observe(timings.decode.as_secs_f64());
            latencies.prompt_tokens.observe(self.prompt as f64);
            latencies.generated_tokens.observe(generated as f64);
        }
        Finished { reason, stop: None, prompt_tokens: self.prompt, generated_tokens: generated, timings }
    }
}

/// Tokens seen so far with their counts, kept up token by token.
#[derive(Debug)]
pub(crate) struct History {
    uses: Vec<TokenUse>,
    places: HashMap<u32, usize>,
}

impl History {
    /// The history of a prompt.
    pub fn new(prompt: &[u32]) -> History {
        let mut history = History { uses: Vec::new(), places: HashMap::new() };
        for &id in prompt {
            history.seen(id);
        }
        history
    }

    /// Every token once, in the order of first occurrence.
    pub fn uses(&self) -> &[TokenUse] {
        &self.uses
    }

    fn generated(&mut self, id: u32) {
        self.seen(id).generated += 1;
    }

    fn seen(&mut self, id: u32) -> &mut TokenUse {
        let place = *self.places.entry(id).or_insert(self.uses.len());
        if place == self.uses.len() {
            self.uses.push(TokenUse { id, generated: 0 });
        }
        &mut self.uses[place]
    }
}

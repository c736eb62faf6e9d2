//! One generation in flight: everything the engine knows about a request after it was accepted.
//!
//! `sampling` is what its tokens are sampled by, with the `constraint` of its answer; `lookup` drafts from
//! its own tokens; `scoring` computes the log-probabilities of its prompt; `client` is the way back to its
//! client.

mod client;
mod constraint;
mod lookup;
mod sampling;
mod scoring;

use crate::request::{EngineError, Event, FinishReason, Finished};
use crate::scheduler::{Candidate, Running, Waiting};
pub(crate) use client::{Client, Reporter, Signals};
pub(crate) use constraint::AnswerConstraint;
pub(crate) use lookup::Lookup;
pub use lookup::{LONGEST_NGRAM, LookupOptions};
use monomorph_cache::swap::Image;
use monomorph_cache::{Lease, Match, SavePoints};
use monomorph_model::Slot;
use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};
pub(crate) use sampling::SamplingState;
pub(crate) use scoring::Scoring;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Requests are numbered as they come.
    pub number: u64,
    /// Lower is earlier.
    pub priority: i64,
    /// Who asked: a number of the server's.
    pub account: u64,
    /// Its blocks. They belong to the pools of `forward`, as its slot does and its image.
    pub lease: Lease,
    /// `Some` while it runs.
    pub slot: Option<Slot>,
    /// What it had computed, while it waits to go on from there.
    pub image: Option<Image>,
    /// Prompt, then answer.
    tokens: Vec<u32>,
    /// How many of `tokens` were the request's.
    prompt: usize,
    /// Most tokens it may come to have.
    limit: usize,
    stop_ids: Vec<u32>,
    /// How many of `tokens` are in the cache.
    fed: usize,
    /// How many of `tokens` there were when it was admitted.
    begun: usize,
    /// Whether no step has fed it since.
    begins: bool,
    /// Whether it was fed more than `fed`: drafts that hold, behind the token that ended it.
    overran: bool,
    /// Up to where its recurrent state was saved or restored last.
    saved: usize,
    /// Tokens that steps in flight sample for it: they come after `tokens`.
    coming: usize,
    /// The last step that feeds it; 0 is none.
    last_step: u64,
    /// What was drafted after the last of `tokens`, by the model or by `lookup`. Of sequences that run and
    /// that a token was sampled for since they were admitted, where drafts are verified: then there is one
    /// token to feed, and these with it.
    drafts: Vec<u32>,
    /// Where the model verifies what the engine drafts.
    lookup: Option<Lookup>,
    /// How many of its tokens were in the cache when it was looked up last, while it waits.
    found: usize,
    /// For how many steps it has waited for what another computes of its prompt.
    held_back: usize,
    sampling: SamplingState,
    /// While its prompt is fed to tell the log-probabilities of its tokens. Then it is fed anew.
    scoring: Option<Scoring>,
    reporter: Reporter,
}

/// What a sequence is made of.
pub(crate) struct Asked {
    pub number: u64,
    pub priority: i64,
    pub account: u64,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Most tokens it may come to have.
    pub limit: usize,
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingState,
    pub lookup: Option<Lookup>,
    pub scoring: Option<Scoring>,
    /// Tokens of a block.
    pub block_tokens: usize,
    pub reporter: Reporter,
}

impl Sequence {
    /// As it was asked for, before anything of it is computed.
    pub fn new(asked: Asked) -> Sequence {
        let Asked { number, priority, account, tokens, limit, stop_ids, .. } = asked;
        let Asked { sampling, lookup, scoring, block_tokens, reporter, .. } = asked;
        let sequence = Sequence {
            number,
            priority,
            account,
            prompt: tokens.len(),
            tokens,
            limit,
            stop_ids,
            fed: 0,
            begun: 0,
            begins: false,
            overran: false,
            saved: 0,
            coming: 0,
            last_step: 0,
            drafts: Vec::new(),
            lookup,
            found: 0,
            held_back: 0,
            sampling,
            scoring,
            lease: Lease::new(block_tokens),
            image: None,
            slot: None,
            reporter,
        };
        sequence.log(|| tracing::info!("queued"));
        sequence
    }

    /// Prompt, then answer, as far as the host knows them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of them were the request's.
    pub fn prompt(&self) -> usize {
        self.prompt
    }

    /// How many of its tokens are in the cache: found there when it was admitted, or fed since, in steps in
    /// flight too.
    pub fn fed(&self) -> usize {
        self.fed
    }

    /// What the next step verifies behind its tokens.
    pub fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// The last step that feeds it; 0 is none.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Its blocks, to be booked, and its tokens.
    pub fn lease_and_tokens(&mut self) -> (&mut Lease, &[u32]) {
        (&mut self.lease, &self.tokens)
    }

    /// Whether no step has fed it since it was admitted.
    pub fn begins(&self) -> bool {
        self.begins
    }

    /// Notes that `step` feeds it up to `end`, and whether it samples a token.
    pub fn submitted(&mut self, end: usize, samples: bool, step: u64) {
        self.begins = false;
        self.fed = end;
        self.coming += usize::from(samples);
        self.last_step = step;
    }

    /// Behind how many of its tokens, `most` at most, its state is due to be saved before the next step.
    pub fn due_save(&self, points: &SavePoints, most: usize) -> Option<usize> {
        let at = self.fed;
        // A token that is not known yet cannot be looked for.
        let due = at <= most.min(self.tokens.len()) && points.is_due(at, self.saved, self.begun);
        due.then_some(at)
    }

    /// Behind how many of its tokens its state stands when it is over, if that is not saved, and no step fed
    /// it more.
    pub fn last_save(&self) -> Option<usize> {
        let at = self.fed;
        (at <= self.tokens.len() && !self.overran && at > self.saved).then_some(at)
    }

    /// Notes that its state is saved behind so many tokens.
    pub fn saved(&mut self, at: usize) {
        self.saved = at;
    }

    /// Notes how many of its tokens a lookup found, while it waits.
    pub fn looked_up(&mut self, found: usize) {
        self.found = found;
    }

    /// For how many steps it was held back because another computes the beginning of its prompt.
    pub fn held_back(&self) -> usize {
        self.held_back
    }

    /// Holds it back for a step.
    pub fn hold_back(&mut self) {
        self.held_back += 1;
    }

    /// Whether its prompt is fed to tell the log-probabilities of its tokens.
    pub fn is_scoring(&self) -> bool {
        self.scoring.is_some()
    }

    /// Goes on to its answer: its prompt is scored.
    pub fn end_scoring(&mut self) {
        self.scoring = None;
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &Sampling {
        self.sampling.parameters()
    }

    /// Whether the inputs of its next sample are better bound after the step is submitted.
    pub fn binds_later(&self) -> bool {
        self.sampling.binds_later(self.coming)
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
        self.sampling.bind(&self.tokens, &self.drafts[..drafts], history, biases, masks)
    }

    /// Whether it only asks after the engine's health.
    pub fn is_canary(&self) -> bool {
        self.reporter.is_canary()
    }

    /// Logs what `event` logs, as of this request, unless it is a canary.
    pub fn log(&self, event: impl FnOnce()) {
        self.reporter.log(event);
    }

    /// Whether it was admitted before.
    pub fn was_admitted(&self) -> bool {
        self.reporter.was_admitted()
    }

    /// Why the client wants no more; `None` while it does.
    pub fn gone(&self) -> Option<FinishReason> {
        self.reporter.gone()
    }

    /// The way back to the client, of a sequence that has ended.
    pub fn into_client(self) -> Client {
        self.reporter.into_client()
    }

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

    /// Whether the next step may feed it: no token is coming, or the one after it is wanted whatever it is.
    pub fn is_ready(&self) -> bool {
        self.coming == 0 || self.length() < self.limit
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
            paid: self.was_admitted(),
            taken: false,
        }
    }

    /// Microseconds from `now` until its next token is late, if it is to come within `tbt` of the one before.
    fn slack(&self, now: Instant, tbt: Duration) -> Option<u64> {
        let since = match (self.coming, self.reporter.last_token()) {
            (0, None) => return None,
            (0, Some(last)) => now - last,
            // Its next token but one is meant, and the next comes when the step can begin.
            (_, _) => Duration::ZERO,
        };
        Some(u64::try_from(tbt.saturating_sub(since).as_micros()).unwrap_or(u64::MAX))
    }

    /// Whether a token that comes `now` comes later than `tbt` after the one before.
    pub fn is_late(&self, now: Instant, tbt: Duration) -> bool {
        self.reporter.last_token().is_some_and(|last| now - last > tbt)
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
        self.reporter.admitted(now);
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
        self.reporter.found(found.tokens);
        self.reporter.admitted(now);
        self.lease = lease;
        (self.fed, self.saved, self.found) = (found.tokens, found.tokens, found.tokens);
        (self.begun, self.begins) = (self.prefill(replays), true);
    }

    /// Takes the next token of the answer: tells the client, or says why the answer is over, or cannot go on.
    fn push(&mut self, sampled: Sampled, now: Instant) -> Option<Result<Finished, EngineError>> {
        let id = sampled.id;
        self.tokens.push(id);
        if self.stop_ids.contains(&id) {
            let finished = self.finished(FinishReason::Stop { id }, now);
            return Some(Ok(Finished { stop: Some(sampled), ..finished }));
        }
        if let Err(why) = self.sampling.take(id) {
            return Some(Err(why.into()));
        }
        self.reporter.tell(Event::Token(sampled));
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
        self.reporter.tokens_came(now);
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
            match self.sampling.look_ahead(&self.drafts) {
                // What was looked up and cannot come is not worth a row.
                Ok(false) => self.drafts.clear(),
                Ok(true) => {}
                Err(why) => end = Some(Err(why.into())),
            }
        }
        (taken as u64, end)
    }

    /// Takes the logits behind the tokens `fed` and tells the client what they say of its prompt; the end if
    /// that was all that was wanted.
    pub fn score(&mut self, fed: Range<usize>, logits: &mut [f32], now: Instant) -> Option<Finished> {
        let (scoring, prompt) = (self.scoring.as_mut()?, self.prompt);
        let scores = scoring.take(&self.tokens[..prompt], fed, logits);
        self.reporter.tell(Event::Prompt(scores));
        (self.is_scored() && self.limit == prompt).then(|| self.finished(FinishReason::Length, now))
    }

    /// Whether all of its prompt is scored, and it has not been fed anew since.
    pub fn is_scored(&self) -> bool {
        self.scoring.as_ref().is_some_and(|scoring| scoring.scored() + 1 == self.prompt)
    }

    /// The last word on a generation that ends now.
    pub fn finished(&self, reason: FinishReason, now: Instant) -> Finished {
        let (prompt_tokens, generated_tokens) = (self.prompt, self.generated());
        let timings = self.reporter.finished(reason, prompt_tokens, generated_tokens, now);
        Finished { reason, stop: None, prompt_tokens, generated_tokens, timings }
    }
}

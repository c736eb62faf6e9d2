//! One generation: everything the engine knows about an accepted request.
//!
//! `sampling` holds its sampling inputs with the `constraint` of its answer; `lookup` drafts from its own
//! tokens; `images` are those of its prompt; `scoring` computes the log-probabilities of its prompt; `client`
//! is its client channel.

mod client;
mod constraint;
mod images;
mod lookup;
mod sampling;
mod scoring;

use crate::request::{EngineError, Event, FinishReason, Finished};
use crate::scheduler::{Candidate, Running, Waiting, WholeSpans};
pub(crate) use client::{Client, Reporter, Signals};
pub(crate) use constraint::AnswerConstraint;
pub(crate) use images::Images;
pub(crate) use lookup::Lookup;
pub use lookup::{LONGEST_NGRAM, LookupOptions};
use monomorph_cache::swap::Image;
use monomorph_cache::{Content, Lease, Match, SavePoints, SlidingBlock};
use monomorph_model::Slot;
use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};
pub(crate) use sampling::SamplingState;
pub(crate) use scoring::Scoring;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A generation, waiting or running.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Number of the request, ascending by arrival.
    pub number: u64,
    /// Lower is served first.
    pub priority: i64,
    /// Client, as numbered by the server.
    pub account: u64,
    /// Its blocks. Like its slot and its image they belong to the pools of `forward`.
    pub lease: Lease,
    /// `Some` while it runs.
    pub slot: Option<Slot>,
    /// Its swapped-out copy, while it waits to resume from that.
    pub image: Option<Image>,
    /// When it resumes: of its blocks of layers with a sliding window, those that are written from the copy.
    pub restored: Vec<Option<SlidingBlock>>,
    /// The images of its prompt. The places of their rows belong to `forward` too.
    pub images: Images,
    /// Prompt, then answer.
    tokens: Vec<u32>,
    /// Length of the prompt, in tokens.
    prompt: usize,
    /// Most tokens it may have, prompt and answer together.
    limit: usize,
    stop_ids: Vec<u32>,
    /// How many of `tokens` are in the cache.
    fed: usize,
    /// Number of `tokens` when it was admitted.
    begun: usize,
    /// Whether no step has fed it since it was admitted.
    begins: bool,
    /// Whether it was fed more than `fed`: accepted drafts behind the token that ended it.
    overran: bool,
    /// Position at which its recurrent state was last saved or restored.
    saved: usize,
    /// Tokens being sampled for it by steps in flight: they come after `tokens`.
    coming: usize,
    /// The last step that feeds it; 0 is none.
    last_step: u64,
    /// Drafts for the next step, from the model or `lookup`. Only a running sequence that sampled a token
    /// since it was admitted has any: they are fed with that one token.
    drafts: Vec<u32>,
    /// The n-gram index, if the model verifies drafts made by the engine.
    lookup: Option<Lookup>,
    /// Cached tokens found by the last lookup while it waits.
    found: usize,
    /// Steps it was held back for a prefix another sequence is computing.
    held_back: usize,
    /// Whether the files of kept prefixes were asked for its prompt.
    pub asked_files: bool,
    sampling: SamplingState,
    /// Scoring state while its prompt is scored; then it is prefilled again.
    scoring: Option<Scoring>,
    reporter: Reporter,
}

/// The inputs of a new sequence.
pub(crate) struct Asked {
    pub number: u64,
    pub priority: i64,
    pub account: u64,
    /// The prompt.
    pub tokens: Vec<u32>,
    pub images: Images,
    /// Most tokens it may have, prompt and answer together.
    pub limit: usize,
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingState,
    pub lookup: Option<Lookup>,
    pub scoring: Option<Scoring>,
    /// Number of tokens that a K/V block holds.
    pub block_tokens: usize,
    pub reporter: Reporter,
}

impl Sequence {
    /// A new sequence of which nothing is computed.
    pub fn new(asked: Asked) -> Sequence {
        let Asked { number, priority, account, tokens, limit, stop_ids, .. } = asked;
        let Asked { images, sampling, lookup, scoring, block_tokens, reporter, .. } = asked;
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
            asked_files: false,
            sampling,
            scoring,
            lease: Lease::new(block_tokens),
            image: None,
            restored: Vec::new(),
            images,
            slot: None,
            reporter,
        };
        sequence.log(|| tracing::info!("queued"));
        sequence
    }

    /// Prompt, then the answer as far as the host knows it.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Most tokens it may have, prompt and answer together.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Length of the prompt, in tokens.
    pub fn prompt(&self) -> usize {
        self.prompt
    }

    /// Tokens in the cache: found there when it was admitted, or fed since, steps in flight included.
    pub fn fed(&self) -> usize {
        self.fed
    }

    /// The drafts that the next step verifies.
    pub fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// The last step that feeds it; 0 is none.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Its tokens and images.
    pub fn content(&self) -> Content<'_> {
        Content::new(&self.tokens, self.images.placed())
    }

    /// Its blocks, to be changed, and its tokens and images.
    pub fn lease_and_content(&mut self) -> (&mut Lease, Content<'_>) {
        (&mut self.lease, Content::new(&self.tokens, self.images.placed()))
    }

    /// Whether no step has fed it since it was admitted.
    pub fn begins(&self) -> bool {
        self.begins
    }

    /// Records that `step` feeds it up to `end`, and whether it samples a token.
    pub fn submitted(&mut self, end: usize, samples: bool, step: u64) {
        self.begins = false;
        self.fed = end;
        self.coming += usize::from(samples);
        self.last_step = step;
    }

    /// The position, at most `most`, at which its state must be saved before the next step, if any.
    pub fn due_save(&self, points: &SavePoints, most: usize) -> Option<usize> {
        let at = self.fed;
        // A snapshot is found by its tokens, so all of them must be known.
        let due = at <= most.min(self.tokens.len()) && points.is_due(at, self.saved, self.begun);
        due.then_some(at)
    }

    /// The position of its state when it has ended, if that is not saved yet and no step fed it more.
    pub fn last_save(&self) -> Option<usize> {
        let at = self.fed;
        (at <= self.tokens.len() && !self.overran && at > self.saved).then_some(at)
    }

    /// Records that its state is saved at position `at`.
    pub fn saved(&mut self, at: usize) {
        self.saved = at;
    }

    /// Records how many of its tokens a lookup found while it waits.
    pub fn looked_up(&mut self, found: usize) {
        self.found = found;
    }

    /// Steps it was held back for a prefix another sequence is computing.
    pub fn held_back(&self) -> usize {
        self.held_back
    }

    /// Counts a step that it is held back.
    pub fn hold_back(&mut self) {
        self.held_back += 1;
    }

    /// Whether its prompt is being scored.
    pub fn is_scoring(&self) -> bool {
        self.scoring.is_some()
    }

    /// Ends scoring: the prompt is prefilled again, for the answer.
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

    /// Replaces the sampling inputs of its next token and of the `drafts` that the step verifies. All its
    /// tokens before these must be known.
    ///
    /// # Errors
    /// When the constraint allows no token.
    pub fn bind_sampling(
        &mut self,
        drafts: usize,
        history: &mut Vec<TokenUse>,
        biases: &mut Vec<Arc<[TokenBias]>>,
        masks: &mut Vec<TokenMask>,
    ) -> Result<(), EngineError> {
        self.sampling.bind(&self.tokens, &self.drafts[..drafts], history, biases, masks)
    }

    /// Whether it only checks the engine's health.
    pub fn is_canary(&self) -> bool {
        self.reporter.is_canary()
    }

    /// Calls `event` in this request's log span, unless it is a canary.
    pub fn log(&self, event: impl FnOnce()) {
        self.reporter.log(event);
    }

    /// Whether it was admitted before.
    pub fn was_admitted(&self) -> bool {
        self.reporter.was_admitted()
    }

    /// Why the client wants no more tokens; `None` while it does.
    pub fn gone(&self) -> Option<FinishReason> {
        self.reporter.gone()
    }

    /// The client channel of an ended sequence.
    pub fn into_client(self) -> Client {
        self.reporter.into_client()
    }

    /// Generated tokens known to the host.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Its length when the steps in flight are done, if none of them ends it. While its prompt is scored, the
    /// last token does not count: its logits are not needed.
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

    /// Whether only the token sampled last remains to be fed.
    pub fn decodes(&self) -> bool {
        self.draw() > 0 && self.length() - self.fed == 1
    }

    /// Whether it can be scheduled: no sampled token is pending, or the pending one cannot reach its length
    /// limit; and it awaits no image.
    pub fn is_ready(&self) -> bool {
        (self.coming == 0 || self.length() < self.limit) && !self.awaits_image()
    }

    /// Whether its next token is of an image whose rows are missing, or one that its next step may feed is
    /// to be seen first.
    pub fn awaits_image(&self) -> bool {
        self.images.comes() || self.images.reach(self.fed) == self.fed
    }

    /// How many of its tokens are prefilled: all known ones when it is admitted, or only the prompt where
    /// `replays` (generated tokens of a pre-empted sequence are decoded again).
    fn prefill(&self, replays: bool) -> usize {
        if replays { self.prompt.min(self.length()) } else { self.length() }
    }

    /// The tokens whose blocks others may reuse: with `replays` only the prefilled ones, because decoded ones
    /// have other bits.
    pub fn reusable(&self, replays: bool) -> Content<'_> {
        self.content().first(self.prefill(replays).min(self.tokens.len()))
    }

    /// The tokens whose cached prefix it may use when it is admitted: the reusable ones, but while its prompt
    /// is scored no more than are already scored.
    pub fn sought(&self, replays: bool) -> Content<'_> {
        match &self.scoring {
            Some(scoring) => self.content().first(scoring.scored()),
            None => self.reusable(replays),
        }
    }

    /// Whether a step that feeds it up to `end` scores tokens of its prompt, so that all logits must be
    /// returned.
    pub fn scores(&self, end: usize) -> bool {
        self.scoring.as_ref().is_some_and(|scoring| end > scoring.scored())
    }

    /// The view of the admission order, for a client that is so far ahead of others.
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

    /// Microseconds from `now` until its next token is more than `tbt` after the one before.
    fn slack(&self, now: Instant, tbt: Duration) -> Option<u64> {
        let since = match (self.coming, self.reporter.last_token()) {
            (0, None) => return None,
            (0, Some(last)) => now - last,
            // This is about the token after the pending one, which arrives when the step can begin.
            (_, _) => Duration::ZERO,
        };
        Some(u64::try_from(tbt.saturating_sub(since).as_micros()).unwrap_or(u64::MAX))
    }

    /// Whether a token at `now` is more than `tbt` after the one before.
    pub fn is_late(&self, now: Instant, tbt: Duration) -> bool {
        self.reporter.last_token().is_some_and(|last| now - last > tbt)
    }

    /// Those of them that its copy holds.
    pub fn stored(&self, replays: bool) -> Content<'_> {
        let reusable = self.reusable(replays);
        reusable.first(self.fed.min(reusable.len()))
    }

    /// Up to which token it may be prefilled in one step when `fed` are in the cache: to where its state is
    /// to be saved, and to the first image whose rows are missing.
    fn prefill_until(&self, fed: usize, saved: usize, begun: usize, saves: Option<&SavePoints>) -> usize {
        let tokens = self.length();
        let until = saves.map_or(tokens, |saves| saves.until(fed, saved, begun, tokens));
        self.images.behind(until).min(self.images.reach(fed))
    }

    /// The scheduler's view while it runs. Its state is saved at `saves`; all its blocks are taken to be
    /// freed when it is pre-empted. Its whole images are listed as `whole`.
    pub fn as_running(
        &self,
        replays: bool,
        saves: Option<&SavePoints>,
        now: Instant,
        tbt: Duration,
        whole: WholeSpans,
    ) -> Running {
        let (tokens, blocks) = (self.length(), self.lease.blocks().len());
        let until = self.prefill_until(self.fed, self.saved, self.begun, saves);
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
            whole,
        }
    }

    /// The scheduler's view while it waits, with what the cache has of its tokens. A step feeds at most
    /// `most`; images among these are seen once it is admitted, and before it is fed.
    pub fn as_waiting(
        &self,
        found: &Match,
        most: usize,
        replays: bool,
        saves: Option<&SavePoints>,
        whole: WholeSpans,
    ) -> Waiting {
        let (tokens, cached, prefill) = (self.length(), found.tokens, self.prefill(replays));
        let until = self.prefill_until(cached, cached, prefill, saves);
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
            ready: self.images.missing(cached..cached + most).is_none(),
            whole,
        }
    }

    /// The scheduler's view while its copy is in memory, with what the cache has of its blocks.
    pub fn as_resuming(
        &self,
        found: &Match,
        replays: bool,
        saves: Option<&SavePoints>,
        whole: WholeSpans,
    ) -> Waiting {
        let tokens = self.length();
        let until = self.prefill_until(self.fed, self.saved, self.begun, saves);
        Waiting {
            tokens,
            cached: self.fed,
            shared: found.in_use,
            prefill: self.prefill(replays).min(until),
            drafts: self.drafts.len(),
            limit: self.limit,
            scored: self.scoring.is_some(),
            priority: self.priority,
            ready: !self.awaits_image(),
            whole,
        }
    }

    /// Resumes from its copy in new blocks and another slot.
    pub fn resume(&mut self, lease: Lease, restored: Vec<Option<SlidingBlock>>, now: Instant) {
        self.reporter.admitted(now);
        self.restored = restored;
        self.lease = lease;
        self.begins = true;
    }

    /// Drops what was computed: it is fed again from its first token.
    pub fn forget(&mut self) {
        self.image = None;
        self.fed = 0;
        // They were drafted from the dropped state; prefilling again yields others.
        self.drafts.clear();
    }

    /// Starts or restarts it with a lease of the cached prefix.
    pub fn begin(&mut self, lease: Lease, found: &Match, replays: bool, now: Instant) {
        self.reporter.found(found.tokens);
        self.reporter.admitted(now);
        self.lease = lease;
        (self.fed, self.saved, self.found) = (found.tokens, found.tokens, found.tokens);
        (self.begun, self.begins) = (self.prefill(replays), true);
    }

    /// Takes the next token of the answer: sends it to the client, or returns why the answer ends or fails.
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

    /// Takes the tokens a step sampled for it, at least one, and the drafts after them. Returns how many of
    /// the tokens it took, and the end if one of them is the last or none can follow.
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
        // All sampled tokens but the last were fed as drafts.
        self.fed += taken - 1;
        if let (Some(lookup), None) = (&mut self.lookup, &end) {
            if !fed.is_empty() {
                lookup.judge(taken - 1);
            }
            lookup.learn(&self.tokens);
            self.drafts = lookup.draft(&self.tokens, self.tokens.len() + 1 == self.limit);
            match self.sampling.look_ahead(&self.drafts) {
                // Drafts that the constraint forbids are not worth a row.
                Ok(false) => self.drafts.clear(),
                Ok(true) => {}
                Err(why) => end = Some(Err(why.into())),
            }
        }
        (taken as u64, end)
    }

    /// Takes the logits of the tokens `fed` and sends the client the log-probabilities of its prompt; returns
    /// the end if only those were requested.
    pub fn score(&mut self, fed: Range<usize>, logits: &mut [f32], now: Instant) -> Option<Finished> {
        let (scoring, prompt) = (self.scoring.as_mut()?, self.prompt);
        let scores = scoring.take(&self.tokens[..prompt], fed, logits);
        self.reporter.tell(Event::Prompt(scores));
        (self.is_scored() && self.limit == prompt).then(|| self.finished(FinishReason::Length, now))
    }

    /// Whether all of its prompt is scored and it has not been requeued yet.
    pub fn is_scored(&self) -> bool {
        self.scoring.as_ref().is_some_and(|scoring| scoring.scored() + 1 == self.prompt)
    }

    /// The final record of a generation that ends now.
    pub fn finished(&self, reason: FinishReason, now: Instant) -> Finished {
        let (prompt_tokens, generated_tokens) = (self.prompt, self.generated());
        let timings = self.reporter.finished(reason, prompt_tokens, generated_tokens, now);
        Finished { reason, stop: None, prompt_tokens, generated_tokens, timings }
    }
}

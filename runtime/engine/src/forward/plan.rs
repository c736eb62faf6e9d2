//! Plans the next step from the state of the engine.

use super::Forward;
use super::offload::Offload;
use super::swap::Copied;
use crate::options::ScheduleOptions;
use crate::scheduler::{
    HOLDS, Pace, Running, SchedulerLimits, StepPlan, View, Waiting, WholeSpan, WholeSpans, schedule,
};
use crate::sequence::Sequence;
use monomorph_model::ModelSpec;
use std::time::{Duration, Instant};

/// Bytes of logits that a step may return for prompts, beyond those of one chunk. The forward thread
/// normalizes each row, and other sequences wait meanwhile.
const SCORED_BYTES: usize = 16 << 20;

/// What was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// A step, which is built.
    Step,
    /// None, but sequences were admitted, all of which wait for rows of images.
    Admitted,
    /// None: collect a step, see an image or wait for a page first.
    Nothing,
}

/// Scheduler inputs, with reusable buffers for both queues.
pub(super) struct Planner {
    limits: SchedulerLimits,
    schedule: ScheduleOptions,
    /// Estimate of step times.
    pace: Pace,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    whole: Vec<WholeSpan>,
    /// Whether the next request waits for its image's pages.
    awaits_pages: bool,
}

impl Planner {
    /// A planner of steps of at most so many `sequences`.
    pub fn new(spec: &ModelSpec, sequences: usize, schedule: ScheduleOptions) -> Planner {
        Planner {
            limits: limits(spec, sequences, schedule.prefill_tokens),
            schedule,
            pace: Pace::default(),
            running: Vec::new(),
            waiting: Vec::new(),
            whole: Vec::new(),
            awaits_pages: false,
        }
    }

    /// What a step may carry.
    pub fn limits(&self) -> &SchedulerLimits {
        &self.limits
    }

    #[cfg(test)]
    pub fn limits_mut(&mut self) -> &mut SchedulerLimits {
        &mut self.limits
    }

    /// Waiting requests that the next step may admit.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// The target time between tokens.
    pub fn tbt(&self) -> Duration {
        self.schedule.tbt
    }

    /// Lists the images of a waiting sequence that no step may end within.
    pub fn list_whole(&mut self, sequence: &Sequence) -> WholeSpans {
        list_whole(&mut self.whole, sequence)
    }

    /// Records the prefilled tokens and the duration of a step.
    pub fn observe(&mut self, prefilled: usize, time: Duration) {
        self.pace.observe(prefilled, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

/// Adds the images of a sequence that no step may end within.
fn list_whole(whole: &mut Vec<WholeSpan>, sequence: &Sequence) -> WholeSpans {
    let first = whole.len();
    whole.extend(sequence.images.whole());
    WholeSpans { first, count: whole.len() - first }
}

/// The limits of a model's steps: at most so many `sequences`, and `prefill_tokens` of prompts, where 0 means
/// as many as fit.
fn limits(spec: &ModelSpec, sequences: usize, prefill_tokens: usize) -> SchedulerLimits {
    let prefill_tokens = if prefill_tokens == 0 { spec.step_tokens } else { prefill_tokens };
    SchedulerLimits {
        block_tokens: spec.block_tokens,
        step_tokens: spec.step_tokens,
        step_sequences: spec.step_sequences.min(sequences),
        drafts: spec.drafts(),
        reach: spec.reach(),
        chunk_tokens: spec.chunk_alignment(),
        scored_tokens: (SCORED_BYTES / (size_of::<f32>() * spec.vocabulary.max(1)))
            .max(spec.chunk_alignment()),
        prefill_tokens: prefill_tokens.clamp(spec.chunk_alignment().min(spec.step_tokens), spec.step_tokens),
    }
}

impl Forward {
    /// Plans and builds the next step. `split`: whether sampling inputs may follow.
    ///
    /// # Errors
    /// When no step can be planned, or promised blocks are missing: either is a bug in the engine.
    pub(super) fn plan(&mut self, split: bool) -> Result<Planned, String> {
        self.view();
        let view = View {
            free_blocks: self.memory.cache().available(),
            free_slots: self.memory.free_slots().len(),
            in_flight: !self.pipeline.is_empty(),
            running: &self.planner.running,
            waiting: &self.planner.waiting,
            whole: &self.planner.whole,
            policy: self.planner.schedule.policy,
            pace: self.planner.pace,
        };
        let StepPlan { preempt, admit, rows, cut } = schedule(&view, &self.planner.limits);
        // Images are copied back between steps.
        let resumes = self.queue.picks().take(admit).any(|one| one.image.is_some());
        if view.in_flight && (rows.is_empty() || resumes || !self.has_windows_for(&rows, admit)) {
            return Ok(Planned::Nothing);
        }
        let awaits_images = self.batch.iter().any(Sequence::awaits_image);
        let waits = self.planner.awaits_pages || awaits_images || !self.has_sequences();
        if rows.is_empty() && admit == 0 && waits {
            return Ok(Planned::Nothing);
        }
        if rows.is_empty() && admit == 0 {
            return Err(format!(
                "no step for {} running and {} waiting sequences with {} free blocks",
                self.batch.len(),
                self.queue.len(),
                self.memory.cache().available()
            ));
        }
        self.images.begin(self.memory.copies().len());
        for _ in 0..preempt {
            if let Some(mut sequence) = self.batch.pop() {
                self.preempt(&mut sequence)?;
                self.queue.push(sequence);
            }
        }
        self.admit(admit)?;
        // What was just admitted has its blocks from the start, even if it waits for rows of an image.
        for sequence in self.batch.iter_mut().filter(|sequence| sequence.is_ready() || sequence.begins()) {
            let tokens = sequence.length() + self.planner.limits.reach;
            self.memory.grow(sequence, tokens)?;
        }
        self.bring_back();
        if preempt > 0 || admit > 0 || cut {
            let mut counters = self.outputs.counters();
            counters.stats.preemptions += preempt as u64;
            counters.stats.prompts_cut += u64::from(cut);
            drop(counters);
            self.publish(None);
        }
        if rows.is_empty() {
            return Ok(Planned::Admitted);
        }
        let Forward { step, batch, memory, pipeline, contract, tower, .. } = self;
        step.build(&rows, split, batch, memory, pipeline, contract)?;
        for row in &rows {
            let sequence = &mut batch[row.sequence];
            // What the step feeds counts as fed.
            let fed = sequence.fed();
            tower.release(sequence, fed);
        }
        if !self.step.awaits_sampling() {
            self.bind_sampling()?;
        }
        Ok(Planned::Step)
    }

    /// Writes the scheduler's view of both queues, as far as it can use them.
    fn view(&mut self) {
        self.batch.rank();
        let limits = self.planner.limits;
        let offload = Offload::new(self.memory.share(), &limits);
        let (replays, saves) = (self.memory.replays(), self.memory.saves());
        let ScheduleOptions { policy, tbt, .. } = self.planner.schedule;
        let now = Instant::now();
        self.planner.running.clear();
        self.planner.whole.clear();
        let windows = *self.memory.windows();
        let mut free_windows = self
            .batch
            .iter()
            .map(|one| windows.most(one.limit()))
            .fold(windows.room(), usize::saturating_sub);
        // Offload slots that earlier requests will still need are not given away.
        let mut free_places = self.memory.cache().free_offload_places();
        let Planner { running, whole, .. } = &mut self.planner;
        running.extend(self.batch.iter().map(|one| {
            let on_disk = one.lease.offloaded_blocks();
            free_places = free_places.saturating_sub(offload.due(one.length(), on_disk));
            let whole = list_whole(whole, one);
            offload.running(on_disk, one.as_running(replays, saves, now, tbt, whole))
        }));
        self.planner.waiting.clear();
        self.queue.order(policy, &self.memory);
        self.planner.awaits_pages = false;
        // Lookups take time, so only as many requests are looked up as have slots and fill one step. The
        // later a prompt is looked up, the more of it is found.
        let (mut budget, mut turns) = (limits.prefill_tokens, self.queue.turns());
        for _ in 0..self.memory.free_slots().len() {
            let before = turns;
            let Some(next) = self.queue.pick(policy, &mut turns) else { break };
            let due = offload.due(self.queue.get(next).tokens().len(), 0);
            let window = windows.most(self.queue.get(next).limit());
            if due > free_places || window > free_windows {
                break;
            }
            let waiting = match self.view_of_copy(next) {
                Copied::Here(waiting) => waiting,
                Copied::Comes => {
                    self.planner.awaits_pages = true;
                    break;
                }
                Copied::No => {
                    let one = self.queue.get(next);
                    let found = self.memory.lookup(one);
                    if one.held_back() < HOLDS && self.is_coming(one, found.tokens) {
                        self.queue.get_mut(next).hold_back();
                        turns = before;
                        continue;
                    }
                    let found = match self.comes_from_files(next, found.tokens) {
                        true => {
                            self.planner.awaits_pages = true;
                            break;
                        }
                        false => found,
                    };
                    let one = self.queue.get(next);
                    let whole = self.planner.list_whole(one);
                    let most = limits.step_tokens;
                    let (replays, saves) = (self.memory.replays(), self.memory.saves());
                    offload.waiting(one.as_waiting(&found, most, replays, saves, whole))
                }
            };
            free_places -= due;
            free_windows -= window;
            self.planner.waiting.push(waiting);
            self.queue.picked(next);
            budget = budget.saturating_sub(waiting.tokens - waiting.cached);
            if budget == 0 {
                break;
            }
        }
        self.view_returns();
    }

    /// Corrects how many blocks each running sequence frees, without those that others share. It matters only
    /// when one must be pre-empted.
    fn view_returns(&mut self) {
        let Planner { limits, running, .. } = &mut self.planner;
        let missing = running.iter().map(|one| one.missing(limits)).sum::<usize>();
        if missing <= self.memory.cache().available() {
            return;
        }
        let leaving = self.pipeline.leaving().map(|(lease, _)| lease);
        let returns = self.memory.returns(leaving.chain(self.batch.iter().map(|one| &one.lease)));
        let skipped = returns.len() - running.len();
        for (view, returns) in running.iter_mut().zip(&returns[skipped..]) {
            view.returns = *returns;
        }
    }

    /// Whether a running or already picked sequence will soon cache more of a waiting sequence's prompt than
    /// was found there.
    fn is_coming(&self, sequence: &Sequence, found: usize) -> bool {
        let running = self.batch.iter().map(|one| (one, one.lease.indexed_tokens()));
        let picked = self.queue.picks().zip(self.planner.waiting.iter().map(|view| view.cached));
        self.memory.is_coming(sequence, found, running.chain(picked))
    }

    /// Admits the first `count` of the picked requests with their cached prefixes.
    ///
    /// # Errors
    /// On an accounting error.
    fn admit(&mut self, count: usize) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let now = Instant::now();
        for place in 0..count {
            let Some(mut sequence) = self.queue.take(place) else { return Ok(()) };
            if sequence.image.is_some() {
                self.memory.resume(&mut sequence, now)?;
            } else {
                let first = !sequence.was_admitted() && !sequence.is_canary();
                let found = self.memory.admit(&mut sequence, now)?.tokens;
                if first {
                    self.queue.serve(sequence.account, (sequence.tokens().len() - found) as u64);
                }
                self.touch_kept(&sequence, found);
                let stats = &mut self.outputs.counters().stats;
                stats.tokens_asked += sequence.tokens().len() as u64;
                stats.tokens_cached += found as u64;
            }
            self.batch.push(sequence);
        }
        Ok(())
    }

    /// Binds the sampling inputs of the next step, or of the one submitted last. A sequence whose constraint
    /// allows no token ends, and its row is discarded.
    ///
    /// # Errors
    /// See [`Forward::free`].
    pub(super) fn bind_sampling(&mut self) -> Result<(), String> {
        let stuck = self.step.bind_sampling(&mut self.batch);
        // In reverse, so that removal keeps the remaining indices valid.
        for (index, why) in stuck.into_iter().rev() {
            let sequence = self.batch.remove(index);
            self.fail(sequence, why)?;
        }
        Ok(())
    }
}

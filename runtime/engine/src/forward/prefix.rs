//! What the cache decides, carried out: prompts go on from what earlier sequences left, and every step that
//! was collected leaves something.
//!
//! The index comes to know a block when the step that filled it is collected, and a snapshot when the step
//! that saved it is: what a lookup finds is there, whatever is in flight. Copies of states are part of the
//! next step. The device works on steps in their order, so a place may be promised anew as soon as the step
//! that reads it is planned.

use super::flights::Row;
use super::swap::Copied;
use super::{Forward, far, unbalanced};
use crate::scheduler::{HOLDS, Policy, comes, pick, rank};
use crate::sequence::Sequence;
use monomorph_cache::{Evicted, PrefixCache, SavePoints, Snapshot};
use monomorph_model::{Slot, SnapshotId, StateCopy, StatePlace};
use std::time::Instant;

/// How many of those that wait are looked up a step, only to order them.
const LOOKUPS: usize = 4;

/// What went for others, until the counters hear of it.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    pub blocks: u64,
    pub snapshots: u64,
}

impl Evictions {
    fn count(&mut self, evicted: &[Evicted]) {
        for one in evicted {
            self.blocks += u64::from(one.block);
            self.snapshots += u64::from(one.snapshot.is_some());
        }
    }
}

impl Forward {
    /// How both queues look to the scheduler, as far as it can make use of them.
    pub(super) fn view(&mut self) {
        rank(&mut self.running, |one| (one.priority, one.number));
        let (replays, saves) = (self.replays, self.saves.as_ref());
        let (now, tbt) = (Instant::now(), self.schedule.tbt);
        self.running_view.clear();
        let (share, limits) = (*self.cache.share(), self.limits);
        // Nobody is admitted to places on disk that those before it are still going to need.
        let mut free_far = self.cache.free_far();
        self.running_view.extend(self.running.iter().map(|one| {
            let far = one.lease.far_blocks();
            free_far = free_far.saturating_sub(far::due(&share, &limits, one.length(), far));
            far::shown(&share, &limits, far, one.as_running(replays, saves, now, tbt))
        }));
        self.waiting_view.clear();
        self.order();
        self.awaits_pages = false;
        // Looking a prompt up takes time: only for those that there is a slot for, and that fill one step.
        // Whoever is looked up later finds more.
        let (mut budget, mut turns) = (self.limits.prefill_tokens, self.turns);
        for _ in 0..self.free_slots.len() {
            let before = turns;
            let Some(next) = pick(&mut self.candidates, self.schedule.policy, &mut turns) else { break };
            let due = far::due(&share, &limits, self.waiting[next].tokens.len(), 0);
            if due > free_far {
                break;
            }
            let waiting = match self.view_of_copy(next) {
                Copied::Here(waiting) => waiting,
                Copied::Comes => {
                    self.awaits_pages = true;
                    break;
                }
                Copied::No => {
                    let (one, replays) = (&self.waiting[next], self.replays);
                    let found = self.cache.lookup(one.sought(replays));
                    if self.shares && one.held < HOLDS && self.is_coming(one.sought(replays), found.tokens) {
                        self.waiting[next].held += 1;
                        turns = before;
                        continue;
                    }
                    far::shown_waiting(&share, &limits, one.as_waiting(&found, replays, self.saves.as_ref()))
                }
            };
            free_far -= due;
            self.waiting_view.push(waiting);
            self.picked.push(next);
            budget = budget.saturating_sub(waiting.tokens - waiting.cached);
            if budget == 0 {
                break;
            }
        }
        // What sequences share does not come back with each of them. Only when somebody has to go does it
        // matter.
        let missing = self.running_view.iter().map(|one| one.missing(&self.limits)).sum::<usize>();
        if missing > self.cache.available() {
            let leaving = self.flights.leaving().map(|(lease, _)| lease);
            let leases = leaving.chain(self.running.iter().map(|one| &one.lease));
            let returns = self.cache.returns(leases);
            let skipped = returns.len() - self.running.len();
            for (view, returns) in self.running_view.iter_mut().zip(&returns[skipped..]) {
                view.returns = *returns;
            }
        }
    }

    /// Whether one that runs, or that was picked before, is about to leave more of a prompt in the cache than
    /// was found there.
    fn is_coming(&self, prompt: &[u32], found: usize) -> bool {
        let running = self.running.iter().map(|one| (one, one.lease.indexed_tokens()));
        let picked = self.picked.iter().zip(&self.waiting_view);
        let picked = picked.map(|(at, view)| (&self.waiting[*at], view.cached));
        // What may come to be on disk nobody finds.
        let known = |one: &Sequence| one.reusable(self.replays).len().min(self.cache.kept_tokens());
        running
            .chain(picked)
            .any(|(one, left)| comes(prompt, found, &one.tokens[..known(one)], left, self.granule))
    }

    /// Who waits, for [`pick`] to choose from.
    fn order(&mut self) {
        self.picked.clear();
        self.candidates.clear();
        self.clients.settle(self.waiting.iter().filter(|one| !one.is_canary()).map(|one| one.account));
        if self.free_slots.is_empty() {
            return;
        }
        if self.schedule.policy == Policy::Slai && !self.waiting.is_empty() {
            // What is in the cache of a prompt changes while it waits. To order them, what was there a moment
            // ago will do.
            for _ in 0..LOOKUPS {
                self.looked = (self.looked + 1) % self.waiting.len();
                let one = &mut self.waiting[self.looked];
                one.found = self.cache.lookup(one.sought(self.replays)).tokens;
            }
        }
        let clients = &self.clients;
        self.candidates.extend(self.waiting.iter().map(|one| one.as_candidate(clients.ahead(one.account))));
    }

    /// Admits the first `count` of those picked, with all that is there of their tokens.
    ///
    /// # Errors
    /// When the books do not balance.
    pub(super) fn admit(&mut self, count: usize) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let now = Instant::now();
        for place in 0..count {
            let (before, at) = (&self.picked[..place], self.picked[place]);
            let gone = before.iter().filter(|earlier| **earlier < at).count();
            let Some(sequence) = self.waiting.remove(at - gone) else { return Ok(()) };
            self.begin(sequence, now)?;
        }
        Ok(())
    }

    fn begin(&mut self, mut sequence: Sequence, now: Instant) -> Result<(), String> {
        self.turns.took(sequence.is_canary());
        if sequence.image.is_some() {
            return self.resume(sequence, now);
        }
        let first = sequence.clock.admitted.is_none() && !sequence.is_canary();
        let (lease, found) = self.cache.admit(sequence.sought(self.replays)).map_err(unbalanced)?;
        sequence.slot = self.free_slots.pop();
        sequence.begin(lease, &found, self.replays, now);
        if let (Some(snapshot), Some(slot)) = (found.snapshot, sequence.slot) {
            let (from, to) = (place(snapshot), StatePlace::Slot(slot));
            self.step.copies.push(StateCopy { from, to });
        }
        if first {
            self.clients.serve(sequence.account, (sequence.tokens.len() - found.tokens) as u64);
        }
        self.running.push(sequence);
        self.shared.counters().stats.tokens_cached += found.tokens as u64;
        Ok(())
    }

    /// Gives every sequence that may be fed the blocks of all its tokens.
    ///
    /// # Errors
    /// When they are not there.
    pub(super) fn grow(&mut self) -> Result<(), String> {
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_ready()) {
            let tokens = sequence.length() + self.limits.reach;
            let grown = self.cache.grow(&mut sequence.lease, tokens);
            self.evictions.count(&grown.map_err(|error| format!("planned, but {error}"))?);
        }
        Ok(())
    }

    /// Books what a step did for a sequence of which `done` tokens are in the cache by it.
    ///
    /// # Errors
    /// When the books do not balance.
    pub(super) fn leave(&mut self, row: &Row, index: usize, done: usize) -> Result<(), String> {
        let done = done.min(self.running[index].reusable(self.replays).len());
        let Sequence { lease, tokens, .. } = &mut self.running[index];
        if let Some((snapshot, at)) = row.save {
            self.cache.keep(lease, &tokens[..at], snapshot).map_err(unbalanced)?;
        }
        self.cache.extend(lease, &tokens[..done]).map_err(unbalanced)
    }

    /// Saves the state of a sequence that is over, if no step fed it more than its tokens, and they fill
    /// their blocks.
    ///
    /// # Errors
    /// When the books do not balance.
    pub(super) fn save_last(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let Some(saves) = &self.saves else { return Ok(()) };
        let (Some(slot), at) = (sequence.slot, sequence.fed) else { return Ok(()) };
        let over = self.flights.is_collected(sequence.last_step) && at <= sequence.tokens.len();
        if !over
            || self.replays
            || sequence.overran
            || at <= sequence.saved
            || at > self.cache.kept_tokens()
            || !at.is_multiple_of(saves.granule)
        {
            return Ok(());
        }
        if let Some(snapshot) = reserve(&mut self.cache, slot, &mut self.step.copies, &mut self.evictions) {
            self.cache.keep(&mut sequence.lease, &sequence.tokens[..at], snapshot).map_err(unbalanced)?;
        }
        Ok(())
    }
}

/// Saves the state of a sequence that is about to be fed, where one is due.
pub(super) fn save(
    saves: Option<&SavePoints>,
    sequence: &mut Sequence,
    slot: Slot,
    cache: &mut PrefixCache,
    copies: &mut Vec<StateCopy>,
    evictions: &mut Evictions,
) -> Option<(Snapshot, usize)> {
    let (at, saved) = (sequence.fed, sequence.saved);
    // A token that is not known yet cannot be looked for.
    if at > sequence.tokens.len() || !saves?.is_due(at, saved, sequence.begun) {
        return None;
    }
    let snapshot = reserve(cache, slot, copies, evictions)?;
    sequence.saved = at;
    Some((snapshot, at))
}

/// A place to which the next step copies the state of a slot.
fn reserve(
    cache: &mut PrefixCache,
    slot: Slot,
    copies: &mut Vec<StateCopy>,
    evictions: &mut Evictions,
) -> Option<Snapshot> {
    let (snapshot, evicted) = cache.reserve()?;
    evictions.count(&evicted);
    copies.push(StateCopy { from: StatePlace::Slot(slot), to: place(snapshot) });
    Some(snapshot)
}

fn place(snapshot: Snapshot) -> StatePlace {
    StatePlace::Snapshot(SnapshotId(snapshot.0))
}

//! Waiting sequences and the order of admission.

use super::memory::Memory;
use crate::scheduler::{Candidate, Clients, Policy, Turns, pick};
use crate::sequence::Sequence;
use std::collections::VecDeque;

/// Waiting sequences looked up in the cache each step for ordering only.
const LOOKUPS: usize = 4;

/// Waiting sequences in the order of their arrival, and the state of the admission order.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Sequence>,
    /// Indices of the sequences picked for this step.
    picked: Vec<usize>,
    candidates: Vec<Candidate>,
    turns: Turns,
    clients: Clients,
    /// Index of the last sequence looked up for ordering.
    looked_up: usize,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.waiting.iter_mut()
    }

    /// The sequence at an index that [`Queue::pick`] gave.
    pub fn get(&self, at: usize) -> &Sequence {
        &self.waiting[at]
    }

    pub fn get_mut(&mut self, at: usize) -> &mut Sequence {
        &mut self.waiting[at]
    }

    /// Adds a sequence.
    pub fn push(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|one| one.number < sequence.number);
        self.waiting.insert(at, sequence);
    }

    /// Removes the last sequence for which `gone` is true.
    pub fn pop_gone(&mut self, gone: impl Fn(&Sequence) -> bool) -> Option<Sequence> {
        let at = self.waiting.iter().rposition(gone)?;
        self.waiting.remove(at)
    }

    /// Removes all sequences.
    pub fn drain(&mut self) -> std::collections::vec_deque::Drain<'_, Sequence> {
        self.waiting.drain(..)
    }

    /// Sequences that were admitted before and whose clients are still there.
    pub fn preempted(&self) -> usize {
        self.waiting.iter().filter(|one| one.was_admitted() && !one.is_canary()).count()
    }

    /// Begins the picks of a step.
    pub fn order(&mut self, policy: Policy, memory: &Memory) {
        self.picked.clear();
        self.candidates.clear();
        self.clients.settle(self.waiting.iter().filter(|one| !one.is_canary()).map(|one| one.account));
        if memory.free_slots().is_empty() {
            return;
        }
        if policy == Policy::Slai && !self.waiting.is_empty() {
            // Cached prefixes change while a request waits; a slightly stale lookup is enough for ordering.
            for _ in 0..LOOKUPS {
                self.looked_up = (self.looked_up + 1) % self.waiting.len();
                let one = &mut self.waiting[self.looked_up];
                one.looked_up(memory.lookup(one).tokens);
            }
        }
        let clients = &self.clients;
        self.candidates.extend(self.waiting.iter().map(|one| one.as_candidate(clients.ahead(one.account))));
    }

    /// The turns of admission counted so far.
    pub fn turns(&self) -> Turns {
        self.turns
    }

    /// Picks the next candidate and counts it in `turns`.
    pub fn pick(&mut self, policy: Policy, turns: &mut Turns) -> Option<usize> {
        pick(&mut self.candidates, policy, turns)
    }

    /// Records that a candidate may be admitted in this step.
    pub fn picked(&mut self, at: usize) {
        self.picked.push(at);
    }

    /// The picked sequences, first to last.
    pub fn picks(&self) -> impl Iterator<Item = &Sequence> {
        self.picked.iter().map(|at| &self.waiting[*at])
    }

    /// Removes the sequence picked at `place`, after all before it were removed.
    pub fn take(&mut self, place: usize) -> Option<Sequence> {
        let (before, at) = (&self.picked[..place], self.picked[place]);
        let gone = before.iter().filter(|earlier| **earlier < at).count();
        let sequence = self.waiting.remove(at - gone)?;
        self.turns.took(sequence.is_canary());
        Some(sequence)
    }

    /// Counts tokens of service for a client.
    pub fn serve(&mut self, client: u64, tokens: u64) {
        self.clients.serve(client, tokens);
    }
}

#[cfg(test)]
mod tests;

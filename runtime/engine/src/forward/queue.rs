//! The sequences that wait, and who of them is next.

use super::memory::Memory;
use crate::scheduler::{Candidate, Clients, Policy, Turns, pick};
use crate::sequence::Sequence;
use std::collections::VecDeque;

/// How many of those that wait are looked up in the cache a step, only to order them.
const LOOKUPS: usize = 4;

/// The sequences that wait, in the order of their arrival, and what decides who is next.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Sequence>,
    /// Those picked for this step, by index.
    picked: Vec<usize>,
    candidates: Vec<Candidate>,
    turns: Turns,
    clients: Clients,
    /// The one that was looked up last, only to order them.
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

    /// The sequence at an index that [`Queue::pick`] gave.
    pub fn get(&self, at: usize) -> &Sequence {
        &self.waiting[at]
    }

    pub fn get_mut(&mut self, at: usize) -> &mut Sequence {
        &mut self.waiting[at]
    }

    /// Lets a sequence wait for its turn.
    pub fn push(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|one| one.number < sequence.number);
        self.waiting.insert(at, sequence);
    }

    /// Takes the last out of those that `gone` is true of.
    pub fn pop_gone(&mut self, gone: impl Fn(&Sequence) -> bool) -> Option<Sequence> {
        let at = self.waiting.iter().rposition(gone)?;
        self.waiting.remove(at)
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> std::collections::vec_deque::Drain<'_, Sequence> {
        self.waiting.drain(..)
    }

    /// Those that were admitted before, and that a client waits for.
    pub fn preempted(&self) -> usize {
        self.waiting.iter().filter(|one| one.was_admitted() && !one.is_canary()).count()
    }

    /// Begins to pick for a step: nobody is picked yet.
    pub fn order(&mut self, policy: Policy, memory: &Memory) {
        self.picked.clear();
        self.candidates.clear();
        self.clients.settle(self.waiting.iter().filter(|one| !one.is_canary()).map(|one| one.account));
        if memory.free_slots().is_empty() {
            return;
        }
        if policy == Policy::Slai && !self.waiting.is_empty() {
            // What the cache has of a prompt changes while it waits. To order them, what it had a moment ago
            // will do.
            for _ in 0..LOOKUPS {
                self.looked_up = (self.looked_up + 1) % self.waiting.len();
                let one = &mut self.waiting[self.looked_up];
                one.looked_up(memory.lookup(one).tokens);
            }
        }
        let clients = &self.clients;
        self.candidates.extend(self.waiting.iter().map(|one| one.as_candidate(clients.ahead(one.account))));
    }

    /// Whose turn it is to be admitted, as counted up to now.
    pub fn turns(&self) -> Turns {
        self.turns
    }

    /// The next candidate; `turns` counts it.
    pub fn pick(&mut self, policy: Policy, turns: &mut Turns) -> Option<usize> {
        pick(&mut self.candidates, policy, turns)
    }

    /// Notes that a candidate may be admitted in this step.
    pub fn picked(&mut self, at: usize) {
        self.picked.push(at);
    }

    /// Those picked, first to last.
    pub fn picks(&self) -> impl Iterator<Item = &Sequence> {
        self.picked.iter().map(|at| &self.waiting[*at])
    }

    /// Takes out the one picked at `place`, when all before it are taken.
    pub fn take(&mut self, place: usize) -> Option<Sequence> {
        let (before, at) = (&self.picked[..place], self.picked[place]);
        let gone = before.iter().filter(|earlier| **earlier < at).count();
        let sequence = self.waiting.remove(at - gone)?;
        self.turns.took(sequence.is_canary());
        Some(sequence)
    }

    /// Counts so many tokens of service for a client.
    pub fn serve(&mut self, client: u64, tokens: u64) {
        self.clients.serve(client, tokens);
    }
}

#[cfg(test)]
mod tests;

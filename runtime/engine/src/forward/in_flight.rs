//! Steps in flight, and what ended sequences still hold because of them.
//!
//! A submitted step may write the blocks of its rows until it is collected, even those of a sequence that
//! ended meanwhile. So blocks and slots return to their pools in one way, [`Pipeline::give_back`], which
//! waits for the last step that holds them.

use super::memory::Memory;
use super::row::Row;
use monomorph_cache::Lease;
use monomorph_model::{Slot, Ticket};
use std::collections::VecDeque;
use std::time::Instant;

/// A step in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub ticket: Ticket,
    pub submitted: Instant,
    pub rows: Vec<Row>,
    /// Whether it is the tower's, which has no rows.
    pub sees: bool,
}

/// What an ended sequence holds.
#[derive(Debug)]
struct Leaving {
    lease: Lease,
    slot: Slot,
    last_step: u64,
}

/// The steps in flight, oldest first, and the memory they still hold.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    steps: VecDeque<InFlight>,
    /// Steps collected so far. Steps count from 1, so this is also the number of the last one collected.
    collected: u64,
    /// When the last step was collected.
    collected_at: Option<Instant>,
    leaving: Vec<Leaving>,
    /// Row lists of collected steps, kept for reuse.
    spare: Vec<Vec<Row>>,
}

impl Pipeline {
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The number of the next step.
    pub fn next_step(&self) -> u64 {
        self.collected + self.steps.len() as u64 + 1
    }

    /// Whether this step is collected, and all before it.
    pub fn is_collected(&self, step: u64) -> bool {
        step <= self.collected
    }

    /// An empty list for the rows of the next step.
    pub fn rows(&mut self) -> Vec<Row> {
        self.spare.pop().unwrap_or_default()
    }

    /// Adds a submitted step.
    pub fn push(&mut self, step: InFlight) {
        self.steps.push_back(step);
    }

    /// Removes the oldest step, which the caller collects at once.
    pub fn pop(&mut self) -> Option<InFlight> {
        let step = self.steps.pop_front()?;
        self.collected += 1;
        Some(step)
    }

    /// Records the collection; returns when the device started the step: when it was submitted, or when the
    /// step before was collected, if that came later.
    pub fn collected(&mut self, submitted: Instant, now: Instant) -> Instant {
        self.collected_at.replace(now).map_or(submitted, |before| before.max(submitted))
    }

    /// Takes back the row list of an applied step.
    pub fn recycle(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.spare.push(rows);
    }

    /// Takes the blocks and the slot of a sequence that `last_step` is the last to feed: they go back to
    /// `memory` now, or when that step is collected.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn give_back(
        &mut self,
        lease: Lease,
        slot: Slot,
        last_step: u64,
        memory: &mut Memory,
    ) -> Result<(), String> {
        self.leaving.push(Leaving { lease, slot, last_step });
        self.release(memory)
    }

    /// Returns to the pools what no step in flight holds any more.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn release(&mut self, memory: &mut Memory) -> Result<(), String> {
        let collected = self.collected;
        for gone in self.leaving.extract_if(.., |one| one.last_step <= collected) {
            memory.release(gone.lease, gone.slot)?;
        }
        Ok(())
    }

    /// Rows of all steps in flight.
    #[cfg(test)]
    pub fn rows_in_flight(&self) -> impl Iterator<Item = &Row> {
        self.steps.iter().flat_map(|step| &step.rows)
    }

    /// What ended sequences hold.
    pub fn leaving(&self) -> impl Iterator<Item = (&Lease, Slot)> {
        self.leaving.iter().map(|one| (&one.lease, one.slot))
    }

    /// Drops everything: no step will be collected any more.
    pub fn abandon(&mut self, memory: &mut Memory) {
        self.steps.clear();
        for mut gone in self.leaving.drain(..) {
            memory.abandon(&mut gone.lease);
        }
    }
}

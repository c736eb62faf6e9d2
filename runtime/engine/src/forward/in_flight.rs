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
}

/// What an ended sequence holds.
#[derive(Debug)]
struct Leaving {
    lease: Lease,
    slot: Slot,
    last_step: u64,
}

/// The steps in flight, oldest first, with the books of what they hold.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    steps: VecDeque<InFlight>,
    /// Steps collected so far. Steps count from 1, so this is also the number of the last one collected.
    collected: u64,
    /// When that was.
    collected_at: Option<Instant>,
    leaving: Vec<Leaving>,
    /// Rows of steps collected, kept for the memory they hold.
    spare: Vec<Vec<Row>>,
}

impl Pipeline {
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The number that the next step will have.
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

    /// Notes a step as submitted.
    pub fn push(&mut self, step: InFlight) {
        self.steps.push_back(step);
    }

    /// The oldest step, to be collected at once.
    pub fn pop(&mut self) -> Option<InFlight> {
        let step = self.steps.pop_front()?;
        self.collected += 1;
        Some(step)
    }

    /// Notes when a step was collected; when the device turned to it, which is when it was submitted and the
    /// step before it was done.
    pub fn collected(&mut self, submitted: Instant, now: Instant) -> Instant {
        self.collected_at.replace(now).map_or(submitted, |before| before.max(submitted))
    }

    /// Takes back the rows of a step that was applied.
    pub fn recycle(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.spare.push(rows);
    }

    /// Takes the blocks and the slot of a sequence that `last_step` is the last to feed: they go back to
    /// `memory` now, or when that step is collected.
    ///
    /// # Errors
    /// When the books do not know the blocks.
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

    /// Gives back what no step in flight holds.
    ///
    /// # Errors
    /// When the books do not know a block.
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

    /// Gives everything up: no step will be collected any more, and nothing will run again.
    pub fn abandon(&mut self, memory: &mut Memory) {
        self.steps.clear();
        for mut gone in self.leaving.drain(..) {
            memory.abandon(&mut gone.lease);
        }
    }
}

//! Running sequences.

use crate::scheduler::rank;
use crate::sequence::Sequence;
use monomorph_model::Slot;
use std::ops::{Deref, DerefMut};

/// Running sequences. While a step is planned they are in the scheduler's order, which pre-empts the last;
/// otherwise their order is arbitrary.
pub(super) struct Batch {
    running: Vec<Sequence>,
    /// Index of a sequence by its slot, as of the last [`Batch::index_slots`].
    by_slot: Vec<Option<usize>>,
}

impl Batch {
    /// An empty batch for at most so many sequences.
    pub fn new(slots: usize) -> Batch {
        Batch { running: Vec::new(), by_slot: vec![None; slots] }
    }

    pub fn push(&mut self, sequence: Sequence) {
        self.running.push(sequence);
    }

    /// Removes the last sequence, the first to be pre-empted.
    pub fn pop(&mut self) -> Option<Sequence> {
        self.running.pop()
    }

    pub fn remove(&mut self, at: usize) -> Sequence {
        self.running.remove(at)
    }

    /// Removes all sequences.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Sequence> {
        self.running.drain(..)
    }

    /// Sorts the sequences into the scheduler's order.
    pub fn rank(&mut self) {
        rank(&mut self.running, |one| (one.priority, one.number));
    }

    /// Records which sequence has which slot, for [`Batch::at_slot`].
    pub fn index_slots(&mut self) {
        self.by_slot.fill(None);
        for (index, sequence) in self.running.iter().enumerate() {
            if let Some(slot) = sequence.slot {
                self.by_slot[slot.0 as usize] = Some(index);
            }
        }
    }

    /// Index of the sequence that had a slot when the slots were indexed last.
    pub fn at_slot(&self, slot: Slot) -> Option<usize> {
        self.by_slot[slot.0 as usize]
    }

    /// Sequences whose clients are still there.
    pub fn answering(&self) -> usize {
        self.running.iter().filter(|one| !one.is_canary()).count()
    }
}

impl Deref for Batch {
    type Target = [Sequence];

    fn deref(&self) -> &[Sequence] {
        &self.running
    }
}

impl DerefMut for Batch {
    fn deref_mut(&mut self) -> &mut [Sequence] {
        &mut self.running
    }
}

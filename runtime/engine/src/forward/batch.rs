//! Running sequences.

use crate::scheduler::rank;
use crate::sequence::Sequence;
use monomorph_model::Slot;
use std::ops::{Index, IndexMut};

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

    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Sequence> {
        self.running.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Sequence> {
        self.running.iter_mut()
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

impl Index<usize> for Batch {
    type Output = Sequence;

    fn index(&self, at: usize) -> &Sequence {
        &self.running[at]
    }
}

impl IndexMut<usize> for Batch {
    fn index_mut(&mut self, at: usize) -> &mut Sequence {
        &mut self.running[at]
    }
}

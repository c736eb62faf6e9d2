//! Sequences that gave their places up without losing what was computed: pre-empted by being copied to the
//! host's memory, and gone on with from there.
//!
//! What is copied when, `monomorph_cache::swap` decides; `images` holds the bytes. Blocks and slots change
//! hands only while no step is in flight: a sequence that comes back waits for the one there may be, as a
//! pre-emption does.

mod images;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod walk;

pub(crate) use images::Images;

use super::Forward;
use crate::scheduler::Waiting;
use crate::sequence::Sequence;
use std::time::Duration;

/// How long a turn without a step waits for a page: that long a client that goes away is not seen.
const PAGE_WAIT: Duration = Duration::from_millis(20);

/// What there is of a sequence that waits.
pub(super) enum Copied {
    /// No copy.
    No,
    /// One whose pages are on their way.
    Comes,
    /// One that it can go on from.
    Here(Waiting),
}

impl Forward {
    /// Takes the place of a sequence that has to make room, and keeps what was computed where that is worth
    /// its while.
    ///
    /// # Errors
    /// See [`Forward::free`].
    pub(super) fn preempt(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        // A server does one of both: see `prepare`.
        let whole = sequence.slot.filter(|_| sequence.lease.far_blocks() == 0);
        let image = whole.and_then(|slot| {
            let blocks = sequence.lease.on_device(sequence.fed());
            self.images.take(sequence.fed(), blocks, slot)
        });
        if image.is_none() {
            return self.free(sequence);
        }
        sequence.image = image;
        self.give_back(sequence)
    }

    /// How one that waits looks to the scheduler if it has a copy; its pages are fetched, where they are on
    /// disk. One whose copy is lost has none from now on.
    pub(super) fn view_of_copy(&mut self, at: usize) -> Copied {
        let (replays, saves) = (self.memory.replays(), self.memory.saves());
        let sequence = self.queue.get_mut(at);
        let Some(image) = sequence.image else { return Copied::No };
        match self.images.want(image) {
            images::Wanted::Here => {
                let found = self.memory.lookup_copied(sequence);
                Copied::Here(sequence.as_resuming(&found, replays, saves))
            }
            images::Wanted::Waits => Copied::Comes,
            images::Wanted::Lost => {
                sequence.forget();
                Copied::No
            }
        }
    }

    /// Orders the pages of those that were given a place to be written to their blocks.
    pub(super) fn bring_back(&mut self) {
        for sequence in self.batch.iter_mut() {
            if let (Some(image), Some(slot)) = (sequence.image.take(), sequence.slot) {
                let known = sequence.lease.indexed_blocks();
                self.images.bring_back(image, known, sequence.lease.on_device(sequence.fed()), slot);
            }
        }
    }

    /// Waits for a page, where there is nothing else to do.
    pub(super) fn wait_for_pages(&mut self) {
        self.images.wait(PAGE_WAIT);
        self.publish(None);
    }
}

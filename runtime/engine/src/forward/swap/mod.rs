//! Swapping: a pre-empted sequence is copied to host memory and resumes from there, without being prefilled
//! again.
//!
//! `monomorph_cache::swap` decides what is copied when; `images` holds the bytes. Blocks and slots change
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

/// How long a turn without a step waits for a page; a client that leaves meanwhile is noticed after it.
const PAGE_WAIT: Duration = Duration::from_millis(20);

/// The copy of a waiting sequence.
pub(super) enum Copied {
    /// No copy.
    No,
    /// A copy whose pages are in transfer.
    Comes,
    /// A copy that it can resume from.
    Here(Waiting),
}

impl Forward {
    /// Pre-empts a sequence, and keeps what was computed where copying is faster than prefilling again.
    ///
    /// # Errors
    /// See [`Forward::free`].
    pub(super) fn preempt(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        // A server uses swap or K/V offload, not both: see `prepare`.
        let whole = sequence.slot.filter(|_| sequence.lease.offloaded_blocks() == 0);
        let image = whole.and_then(|slot| {
            let blocks = sequence.lease.on_device(sequence.fed());
            let sliding = self.memory.windows().live(sequence);
            self.images.take(sequence.fed(), blocks, sliding, slot)
        });
        if image.is_none() {
            return self.free(sequence);
        }
        sequence.image = image;
        self.give_back(sequence)
    }

    /// The scheduler's view of a waiting sequence with a copy; starts to fetch pages from disk. If the copy
    /// is lost, the sequence has none from now on.
    pub(super) fn view_of_copy(&mut self, at: usize) -> Copied {
        let (replays, saves) = (self.memory.replays(), self.memory.saves());
        let sequence = self.queue.get_mut(at);
        let Some(image) = sequence.image else { return Copied::No };
        match self.images.want(image) {
            images::Wanted::Here => {
                let found = self.memory.lookup_copied(sequence);
                let whole = self.planner.list_whole(sequence);
                Copied::Here(sequence.as_resuming(&found, replays, saves, whole))
            }
            images::Wanted::Waits => Copied::Comes,
            images::Wanted::Lost => {
                sequence.forget();
                Copied::No
            }
        }
    }

    /// Orders the images of admitted sequences to be copied back to their blocks.
    pub(super) fn bring_back(&mut self) {
        for sequence in self.batch.iter_mut() {
            if let (Some(image), Some(slot)) = (sequence.image.take(), sequence.slot) {
                let known = sequence.lease.indexed_blocks();
                let restored = std::mem::take(&mut sequence.restored);
                let blocks = sequence.lease.on_device(sequence.fed());
                self.images.bring_back(image, known, blocks, restored, slot);
            }
        }
    }

    /// Waits for a page when there is nothing else to do.
    pub(super) fn wait_for_pages(&mut self) {
        match &mut self.kept {
            Some(keeper) if keeper.under_way() => keeper.wait(PAGE_WAIT),
            _ => self.images.wait(PAGE_WAIT),
        }
        self.publish(None);
    }
}

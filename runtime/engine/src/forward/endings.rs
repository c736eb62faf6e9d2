//! How answers end that the engine does not complete, and what ends are counted.

use super::Forward;
use crate::request::{EngineError, Event, FinishReason};
use crate::sequence::Sequence;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

impl Forward {
    /// Counts the end of an answer, unless it was a canary's.
    pub(super) fn count_end(&self, sequence: &Sequence, reason: FinishReason, now: Instant) {
        if !sequence.is_canary() {
            self.shared.counters().ended(reason, now);
        }
    }

    /// What a client hears whose answer ends by `error`, which is counted.
    pub(super) fn failed(&self, sequence: &Sequence, error: EngineError) -> Event {
        sequence.log(|| tracing::warn!(%error, generated = sequence.generated(), "failed"));
        if !sequence.is_canary() {
            self.shared.counters().stats.failed += 1;
        }
        Event::Failed(error)
    }

    /// Ends everything, accepted or still on its way.
    pub(super) fn fail_all(&mut self, error: &EngineError) {
        while let Ok(command) = self.inbox.try_recv() {
            self.take(command);
        }
        let sequences: Vec<Sequence> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        self.flights.abandon(&mut self.cache);
        for mut sequence in sequences {
            // After a panic the books need not balance, and nobody will allocate from them again.
            let _ = self.cache.release(&mut sequence.lease);
            let event = self.failed(&sequence, error.clone());
            self.farewells.push((sequence.client, event));
        }
        self.shared.counters().step_began = None;
        self.publish(None);
        self.shared.sleeps(true);
    }
}

/// Runs `work`; what it says when it panics is the error.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("no message").to_owned()
    })
}

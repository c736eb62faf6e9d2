//! What the forward thread tells the world: counters, and the last event of every answer.

use crate::request::{EngineError, Event, FinishReason};
use crate::sequence::{Client, Sequence};
use crate::shared::{Counters, Health, Shared};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// When the device turned to a step, and when that was collected.
pub(super) struct Turn {
    pub began: Instant,
    pub collected: Instant,
}

impl Turn {
    /// Counts the step, which took so long to plan; `busy` says whether another is in flight.
    pub fn count(self, counters: &mut Counters, planning: Duration, busy: bool) {
        let Turn { began, collected } = self;
        let now = Instant::now();
        counters.stepped(collected - began);
        counters.stats.host_time += planning + (now - collected);
        counters.step_began = busy.then_some(collected);
        counters.step_ended = Some(now);
    }
}

/// Counters, and the last events that wait for them.
pub(super) struct Outputs {
    shared: Arc<Shared>,
    /// Last events of answers. They are sent when the counters are up to date: a client that has one sees its
    /// blocks returned, but for those that a step in flight holds.
    last_events: Vec<(Client, Event)>,
    /// Time spent on planning that no counter has yet.
    planning: Duration,
}

impl Outputs {
    pub fn new(shared: Arc<Shared>) -> Outputs {
        Outputs { shared, last_events: Vec::new(), planning: Duration::ZERO }
    }

    /// The counters, to be updated.
    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        self.shared.counters()
    }

    /// Counts the end of an answer, unless it was a canary's.
    pub fn count_end(&self, sequence: &Sequence, reason: FinishReason, now: Instant) {
        if !sequence.is_canary() {
            self.counters().ended(reason, now);
        }
    }

    /// Counts an answer that ends with `error`; the event that says so.
    pub fn failed(&self, sequence: &Sequence, error: EngineError) -> Event {
        sequence.log(|| tracing::warn!(%error, generated = sequence.generated(), "failed"));
        if !sequence.is_canary() {
            self.counters().stats.failed += 1;
        }
        Event::Failed(error)
    }

    /// Keeps the last event of an answer until [`Outputs::deliver`].
    pub fn end(&mut self, client: Client, event: Event) {
        self.last_events.push((client, event));
    }

    /// Sends the last events. The counters must be up to date.
    pub fn deliver(&mut self) {
        for (client, event) in self.last_events.drain(..) {
            client.tell(event);
        }
    }

    /// Notes time spent on planning.
    pub fn planned(&mut self, time: Duration) {
        self.planning += time;
    }

    /// The time spent on planning since this was asked last.
    pub fn take_planning(&mut self) -> Duration {
        std::mem::take(&mut self.planning)
    }

    /// Moves on to a health.
    pub fn set_health(&self, health: Health) {
        self.shared.set_health(health);
    }

    /// Notes that the forward thread sleeps from now on, or that it is at work.
    pub fn sleeps(&self, sleeps: bool) {
        self.shared.sleeps(sleeps);
    }
}

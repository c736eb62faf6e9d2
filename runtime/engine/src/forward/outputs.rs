//! Publishes counters and final events.

use crate::request::{EngineError, Event, FinishReason};
use crate::sequence::{Client, Sequence};
use crate::shared::{Counters, Health, Shared};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// When a step started on the device, and when it was collected.
pub(super) struct Turn {
    pub began: Instant,
    pub collected: Instant,
}

impl Turn {
    /// Counts the step. `planning`: time it took to plan; `busy`: whether another step is in flight.
    pub fn count(self, counters: &mut Counters, planning: Duration, busy: bool) {
        let Turn { began, collected } = self;
        let now = Instant::now();
        counters.stepped(collected - began);
        counters.stats.host_time += planning + (now - collected);
        counters.step_began = busy.then_some(collected);
        counters.step_ended = Some(now);
    }
}

/// The counters, and the final events that wait for them.
pub(super) struct Outputs {
    shared: Arc<Shared>,
    /// Final events of answers. They are sent after the counters are updated: a client that has one sees its
    /// blocks returned, except those that a step in flight holds.
    last_events: Vec<(Client, Event)>,
    /// Planning time not yet added to the counters.
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

    /// Counts the end of an answer, unless it is a canary's.
    pub fn count_end(&self, sequence: &Sequence, reason: FinishReason, now: Instant) {
        if !sequence.is_canary() {
            self.counters().ended(reason, now);
        }
    }

    /// Counts an answer that ends with `error`, and returns its event.
    pub fn failed(&self, sequence: &Sequence, error: EngineError) -> Event {
        sequence.log(|| tracing::warn!(%error, generated = sequence.generated(), "failed"));
        if !sequence.is_canary() {
            self.counters().stats.failed += 1;
        }
        Event::Failed(error)
    }

    /// Keeps the final event of an answer until [`Outputs::deliver`].
    pub fn end(&mut self, client: Client, event: Event) {
        self.last_events.push((client, event));
    }

    /// Sends the final events. The counters must be up to date.
    pub fn deliver(&mut self) {
        for (client, event) in self.last_events.drain(..) {
            client.tell(event);
        }
    }

    /// Adds planning time.
    pub fn planned(&mut self, time: Duration) {
        self.planning += time;
    }

    /// Planning time since the last call.
    pub fn take_planning(&mut self) -> Duration {
        std::mem::take(&mut self.planning)
    }

    /// Changes the engine's health.
    pub fn set_health(&self, health: Health) {
        self.shared.set_health(health);
    }

    /// Records that the forward thread sleeps from now on, or works.
    pub fn sleeps(&self, sleeps: bool) {
        self.shared.sleeps(sleeps);
    }
}

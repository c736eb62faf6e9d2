//! What a rank of a model counts while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of one rank, written by its thread and readable by others.
#[derive(Debug, Default)]
pub struct RankMeter {
    steps: AtomicU64,
    exchanges: AtomicU64,
    sent_bytes: AtomicU64,
    launch_ns: AtomicU64,
    wait_ns: AtomicU64,
    exchange_ns: AtomicU64,
}

/// What a [`RankMeter`] read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankCounts {
    /// Steps collected.
    pub steps: u64,
    /// Sums and gathers that were launched.
    pub exchanges: u64,
    /// Bytes that these send to other ranks, to all of them together.
    pub sent_bytes: u64,
    /// Time that the rank's thread took to launch steps.
    pub launching: Duration,
    /// Time that it waited for its device.
    pub waiting: Duration,
    /// Time of one sum of one row alone, measured at the start; zero where none was.
    pub exchange: Duration,
}

impl RankMeter {
    /// Counts exchanges that were launched.
    pub fn exchanged(&self, exchanges: u64, sent_bytes: u64) {
        self.exchanges.fetch_add(exchanges, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
    }

    /// Counts time that launching took.
    pub fn launched(&self, time: Duration) {
        self.launch_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Counts a step that was collected, and how long the device was waited for.
    pub fn collected(&self, waited: Duration) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(nanoseconds(waited), Ordering::Relaxed);
    }

    /// Keeps the time of one exchange alone.
    pub fn measured(&self, exchange: Duration) {
        self.exchange_ns.store(nanoseconds(exchange), Ordering::Relaxed);
    }

    /// All counts now.
    pub fn read(&self) -> RankCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let time = |of: &AtomicU64| Duration::from_nanos(count(of));
        RankCounts {
            steps: count(&self.steps),
            exchanges: count(&self.exchanges),
            sent_bytes: count(&self.sent_bytes),
            launching: time(&self.launch_ns),
            waiting: time(&self.wait_ns),
            exchange: time(&self.exchange_ns),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

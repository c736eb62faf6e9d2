//! Times of phases, taken by the first lane: in profiling builds alone.

use super::team::Lane;
use monomorph_model::TimedRow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How long phases took, in rows. A phase ends with a barrier, so what is charged to one is the time of all
/// lanes from the barrier before it to its own, barriers within it included.
#[derive(Debug)]
pub struct PhaseTimes {
    taken: AtomicBool,
    origin: Instant,
    /// Nanoseconds after `origin` at which the phase under way began.
    since: AtomicU64,
    rows: Vec<Row>,
}

#[derive(Debug, Default)]
struct Row {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl PhaseTimes {
    /// So many rows, whose times are not taken yet.
    pub fn new(rows: usize) -> PhaseTimes {
        PhaseTimes {
            taken: AtomicBool::new(false),
            origin: Instant::now(),
            since: AtomicU64::new(0),
            rows: (0..rows).map(|_| Row::default()).collect(),
        }
    }

    /// From here on time is charged to the phase that ends next.
    #[inline]
    pub fn begin(&self, lane: &Lane) {
        if self.takes(lane) {
            self.since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Charges the time since the last call to the phase of a row, which has ended.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn passed(&self, lane: &Lane, row: usize) {
        if self.takes(lane) {
            let now = self.now();
            let row = &self.rows[row];
            let took = now - self.since.swap(now, Ordering::Relaxed);
            row.count.fetch_add(1, Ordering::Relaxed);
            row.nanoseconds.fetch_add(took, Ordering::Relaxed);
        }
    }

    /// Begins to take times, or ends that. Returns those taken since the last call. No step is under way.
    pub(super) fn take(&self, on: bool) -> Vec<TimedRow> {
        self.taken.store(on, Ordering::Relaxed);
        let row = |row: &Row| TimedRow {
            count: row.count.swap(0, Ordering::Relaxed),
            seconds: 1e-9 * row.nanoseconds.swap(0, Ordering::Relaxed) as f64,
        };
        self.rows.iter().map(row).collect()
    }

    /// The first lane alone reads the clock: no other writes what it reads.
    fn takes(&self, lane: &Lane) -> bool {
        lane.index() == 0 && self.taken.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::team::Team;
    use super::PhaseTimes;
    use std::time::Duration;

    #[test]
    fn a_phase_is_charged_from_the_barrier_before_it_to_its_own() {
        let (team, times) = (Team::new(2).unwrap(), PhaseTimes::new(3));
        let job = || {
            team.run(|lane| {
                times.begin(lane);
                lane.barrier();
                times.passed(lane, 2);
                // The other lane is slower: the first one's wait for it counts.
                if lane.index() == 1 {
                    std::thread::sleep(Duration::from_millis(20));
                }
                lane.barrier();
                times.passed(lane, 0);
                std::thread::sleep(Duration::from_millis(20));
                times.begin(lane);
                lane.barrier();
                times.passed(lane, 2);
            });
        };
        job();
        assert!(times.take(true).iter().all(|row| row.count == 0), "times are taken unasked");
        job();
        let rows = times.take(false);
        assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [1, 0, 2]);
        assert!(rows[0].seconds >= 0.019 && rows[1].seconds == 0.0, "{rows:?}");
        // What came before a beginning is charged to nobody. Threads start within milliseconds.
        assert!(rows[2].seconds < 0.015, "{rows:?}");
        job();
        assert!(times.take(false).iter().all(|row| row.count == 0), "times are taken for ever");
    }
}

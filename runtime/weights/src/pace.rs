//! Which way of reading what is not cached is faster here: directly, or through the system's cache.
//!
//! Where a disk serves many requests at once, direct reads several pieces deep are. Disks of virtual machines
//! may serve one request after the other, and then the system's own reading ahead, in larger pieces, is. So
//! both are tried on the first bytes of a checkpoint.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that a way is timed over.
const TIMED: u64 = 64 << 20;
/// Bytes before them, in which reads that were begun the other way may still be in flight.
const SKIPPED: u64 = 16 << 20;
/// How many times as fast the cache must be to be preferred: direct reads leave it as it was.
const WORTH: f64 = 1.1;

/// A way of reading what is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    Cache,
}

/// What is known of the two ways.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// So many bytes came this way; timed since those that are skipped had come. With the rate of direct
    /// reads, where they were timed already.
    Running { bytes: u64, since: Option<Duration>, direct: Option<f64> },
    /// Direct reads and the cache in bytes a second.
    Over { direct: f64, cache: f64 },
}

impl Trial {
    const BEGIN: Trial = Trial::Running { bytes: 0, since: None, direct: None };

    /// How to read the next piece.
    fn way(&self) -> Way {
        match *self {
            Trial::Running { direct: None, .. } => Way::Direct,
            Trial::Running { .. } => Way::Cache,
            Trial::Over { direct, cache } if cache > WORTH * direct => Way::Cache,
            Trial::Over { .. } => Way::Direct,
        }
    }

    /// Bytes came one way by `now`, a time since the beginning.
    fn arrived(self, by: Way, came: u64, now: Duration) -> Trial {
        let Trial::Running { bytes, since, direct } = self else { return self };
        if by != self.way() {
            return self;
        }
        let bytes = bytes + came;
        let Some(began) = since else {
            let skipped = bytes >= SKIPPED;
            let bytes = if skipped { 0 } else { bytes };
            return Trial::Running { bytes, since: skipped.then_some(now), direct };
        };
        if bytes < TIMED {
            return Trial::Running { bytes, since, direct };
        }
        let rate = bytes as f64 / now.saturating_sub(began).as_secs_f64().max(1e-9);
        match direct {
            None => Trial::Running { bytes: 0, since: None, direct: Some(rate) },
            Some(direct) => Trial::Over { direct, cache: rate },
        }
    }
}

/// The trial of a checkpoint, which all of its threads take part in.
#[derive(Debug)]
pub(crate) struct Pace {
    begun: Instant,
    trial: Mutex<Trial>,
}

impl Pace {
    /// Of a checkpoint of which nothing was read.
    pub(crate) fn new() -> Pace {
        Pace { begun: Instant::now(), trial: Mutex::new(Trial::BEGIN) }
    }

    /// How to read the next piece.
    pub(crate) fn way(&self) -> Way {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner).way()
    }

    /// Bytes came one way. Returns why all others are read through the cache, if that was just found out.
    pub(crate) fn arrived(&self, by: Way, bytes: usize) -> Option<String> {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *trial;
        *trial = before.arrived(by, bytes as u64, self.begun.elapsed());
        match *trial {
            Trial::Over { direct, cache } if before != *trial && trial.way() == Way::Cache => Some(format!(
                "the disk gave {:.1} GB/s directly and {:.1} through the cache",
                direct / 1e9,
                cache / 1e9
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads a checkpoint of `pieces` pieces of a MiB, each of which takes so many milliseconds either way.
    fn read(pieces: u32, direct: u64, cache: u64) -> (Trial, Vec<Way>) {
        let (mut trial, mut now, mut ways) = (Trial::BEGIN, Duration::ZERO, Vec::new());
        for _ in 0..pieces {
            let way = trial.way();
            now += Duration::from_millis(if way == Way::Direct { direct } else { cache });
            trial = trial.arrived(way, MIB, now);
            ways.push(way);
        }
        (trial, ways)
    }

    /// Planted: a preference for the slower way, and one for whichever was tried last.
    #[test]
    fn the_faster_way_is_taken_after_both_were_tried() {
        for (direct, cache, expected) in
            [(1, 2, Way::Direct), (2, 1, Way::Cache), (2, 2, Way::Direct), (21, 20, Way::Direct)]
        {
            let (trial, ways) = read(200, direct, cache);
            let tried = ((SKIPPED + TIMED) / MIB) as usize;
            assert!(ways[..tried].iter().all(|way| *way == Way::Direct));
            assert!(ways[tried..2 * tried].iter().all(|way| *way == Way::Cache));
            assert!(ways[2 * tried..].iter().all(|way| *way == expected), "{direct}, {cache}: {trial:?}");
            let rate = |milliseconds: u64| MIB as f64 * 1e3 / milliseconds as f64;
            let Trial::Over { direct: found, cache: beside } = trial else { panic!("{trial:?}") };
            assert!((found / rate(direct) - 1.0).abs() < 1e-9, "{trial:?}");
            assert!((beside / rate(cache) - 1.0).abs() < 1e-9, "{trial:?}");
        }
    }

    /// Planted: time counted from the first byte, and bytes of the other way counted.
    #[test]
    fn what_was_begun_the_other_way_and_what_is_skipped_is_not_timed() {
        let mut trial = Trial::BEGIN;
        // Nothing comes for a second, and then cached pieces do.
        trial = trial.arrived(Way::Direct, SKIPPED, Duration::from_secs(1));
        trial = trial.arrived(Way::Cache, 10 * TIMED, Duration::from_millis(1001));
        assert_eq!(trial.way(), Way::Direct);
        trial = trial.arrived(Way::Direct, TIMED, Duration::from_millis(1100));
        assert_eq!(trial.way(), Way::Cache);
        let Trial::Running { direct: Some(rate), bytes: 0, since: None } = trial else { panic!("{trial:?}") };
        assert!((rate - TIMED as f64 * 10.0).abs() < 1.0, "{rate}");
    }

    #[test]
    fn a_small_checkpoint_is_read_directly() {
        assert_eq!(read(79, 5, 1).0.way(), Way::Direct);
    }
}

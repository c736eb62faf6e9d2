//! The guard of host memory while weights are loaded: one decision for all devices.
//!
//! A plan is made before anything is loaded, and others may take memory while it is carried out. A
//! loader asks before each allocation with its bytes, and between pieces with none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long what was found between two pieces stands. Asking takes tens of microseconds, and loading seldom
/// takes more than a few gigabytes a second.
const FRESH: Duration = Duration::from_millis(50);

/// Host memory that must stay free.
#[derive(Clone, Copy, Debug)]
pub struct HostGuard {
    /// How much; 0 guards nothing.
    pub bytes: u64,
    /// Bytes that can be allocated now without the system killing a process.
    pub available: fn() -> u64,
}

/// Host memory is about to run out: going on would make the system kill processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes left.
    pub available: u64,
    /// Bytes about to be allocated.
    pub taking: u64,
    /// Bytes that must stay free.
    pub guard: u64,
}

impl HostGuard {
    /// No guard.
    pub const NONE: HostGuard = HostGuard { bytes: 0, available: || u64::MAX };

    /// Refuses an allocation of so many bytes if it would not leave enough.
    ///
    /// # Errors
    /// Says what is left.
    pub fn check(&self, taking: u64) -> Result<(), Shortage> {
        if self.bytes == 0 {
            return Ok(());
        }
        decide((self.available)(), taking, self.bytes)
    }

    /// The guard of one load, for all of its threads.
    pub fn watch(self) -> Watch {
        Watch { guard: self, begun: Instant::now(), asked: AtomicU64::new(u64::MAX) }
    }
}

/// Whether `taking` bytes of `available` ones leave `guard`.
fn decide(available: u64, taking: u64, guard: u64) -> Result<(), Shortage> {
    match available.checked_sub(taking) {
        Some(left) if left >= guard => Ok(()),
        _ => Err(Shortage { available, taking, guard }),
    }
}

/// The guard, watched while weights are loaded.
#[derive(Debug)]
pub struct Watch {
    guard: HostGuard,
    begun: Instant,
    /// When it was asked last, in milliseconds since it began.
    asked: AtomicU64,
}

impl Watch {
    /// Refuses an allocation of so many bytes if it would not leave enough.
    ///
    /// # Errors
    /// As [`HostGuard::check`].
    pub fn take(&self, bytes: u64) -> Result<(), Shortage> {
        self.guard.check(bytes)
    }

    /// Between two pieces: asks again if the last time was a while ago.
    ///
    /// # Errors
    /// As [`HostGuard::check`].
    pub fn look(&self) -> Result<(), Shortage> {
        if self.guard.bytes == 0 {
            return Ok(());
        }
        let now = self.begun.elapsed().as_millis() as u64;
        let asked = self.asked.load(Ordering::Relaxed);
        if asked != u64::MAX && now.saturating_sub(asked) < FRESH.as_millis() as u64 {
            return Ok(());
        }
        self.asked.store(now, Ordering::Relaxed);
        self.guard.check(0)
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shortage { available, taking, guard } = self;
        write!(f, "stopped loading: this machine has {available} bytes of memory left")?;
        if *taking > 0 {
            write!(f, ", {taking} more are about to be taken")?;
        }
        write!(f, ", and {guard} are to stay free (--memory-guard)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To be caught: what is taken not subtracted.
    #[test]
    fn what_is_taken_leaves_the_guard_or_is_refused_with_all_three_figures() {
        for (available, taking, guard) in [(10, 0, 10), (10, 4, 6), (10, 0, 1), (u64::MAX, u64::MAX - 1, 1)] {
            assert_eq!(decide(available, taking, guard), Ok(()), "{available} {taking} {guard}");
        }
        for (available, taking, guard) in [(10, 0, 11), (10, 5, 6), (10, 11, 1), (0, 0, 1), (5, u64::MAX, 1)]
        {
            let shortage = decide(available, taking, guard).expect_err("too little is left");
            assert_eq!(shortage, Shortage { available, taking, guard });
            let words = shortage.to_string();
            assert!(words.contains(&format!("{available} bytes")) && words.contains(&format!("{guard} are")));
            assert_eq!(words.contains(&format!("{taking} more")), taking > 0, "{words}");
        }
        assert_eq!(HostGuard::NONE.check(u64::MAX), Ok(()), "no guard");
    }

    /// To be caught: the time of the last question never kept, and never let go.
    #[test]
    fn between_pieces_it_asks_once_in_a_while() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let available = || {
            ASKED.fetch_add(1, Ordering::Relaxed);
            8
        };
        let watch = HostGuard { bytes: 8, available }.watch();
        assert!((0..1000).all(|_| watch.look().is_ok()));
        let soon = ASKED.load(Ordering::Relaxed);
        assert!((1..100).contains(&soon), "{soon}");
        std::thread::sleep(2 * FRESH);
        assert!(watch.look().is_ok() && watch.take(0).is_ok() && watch.take(1).is_err());
        assert_eq!(ASKED.load(Ordering::Relaxed), soon + 3);
    }
}

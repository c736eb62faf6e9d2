//! CPU time available to these tests, to scale time limits.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// How often the watch looks.
const TICK: Duration = Duration::from_millis(10);
/// Lateness that is a scheduler's, and not a machine's that stood still.
const USUAL: Duration = Duration::from_millis(20);

/// When the machine stood still, and for how long before.
static PAUSES: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Begins to watch for pauses, once a process.
pub fn watch() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let before = Instant::now();
                std::thread::sleep(TICK);
                let late = before.elapsed().saturating_sub(TICK);
                if late > USUAL {
                    PAUSES.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), late));
                }
            }
        });
    });
}

/// Time since then but for the pauses of the machine: of a virtual one that was not scheduled, say.
pub fn since(begin: Instant) -> Duration {
    let pauses = PAUSES.lock().unwrap_or_else(PoisonError::into_inner);
    let within =
        |(end, late): &(Instant, Duration)| end.checked_duration_since(begin).map(|it| it.min(*late));
    begin.elapsed().saturating_sub(pauses.iter().filter_map(within).sum())
}

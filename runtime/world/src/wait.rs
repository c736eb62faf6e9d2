//! How threads wait for each other: at first awake.

use std::time::{Duration, Instant};

/// How long a thread that waits for a call does nothing else: longer than a busy engine takes between two. To
/// be woken takes it about 25 us, to notice a call by itself 1.
pub(crate) const BETWEEN_CALLS: Duration = Duration::from_micros(500);
/// How long one does that waits for a step: longer than most take. A thread that waits for a device spins,
/// too.
pub(crate) const A_STEP: Duration = Duration::from_millis(20);
/// How much of that it does not even let others run.
const HOLD: Duration = Duration::from_micros(20);
/// How often it looks between two looks at the clock.
const LOOKS: u32 = 64;

/// Waits until `done`: awake for as long as `spin`, then parked. The thread that makes it so
/// unparks this one afterwards.
pub(crate) fn wait(spin: Duration, done: impl Fn() -> bool) {
    let begun = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        match begun.elapsed() {
            spent if spent < HOLD => {}
            spent if spent < spin => std::thread::yield_now(),
            _ => std::thread::park(),
        }
    }
}

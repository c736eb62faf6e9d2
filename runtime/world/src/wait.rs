//! How threads wait for each other: at first without a system call.

use std::time::{Duration, Instant};

/// How long a thread that waits does nothing else: longer than a busy engine takes between two calls, or a
/// device for a short step.
const SPIN: Duration = Duration::from_micros(500);
/// How much of that it does not even let others run.
const HOLD: Duration = Duration::from_micros(20);
/// How often it looks between two looks at the clock.
const LOOKS: u32 = 64;

/// Waits until `done`. Whoever makes it so unparks this thread afterwards.
pub(crate) fn wait(done: impl Fn() -> bool) {
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
            spent if spent < SPIN => std::thread::yield_now(),
            _ => std::thread::park(),
        }
    }
}

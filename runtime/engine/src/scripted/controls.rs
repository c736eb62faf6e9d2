//! Commanding a scripted model from outside the engine that owns it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Panic,
    WrongOutput,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    held: bool,
    step_time: Option<Duration>,
    steps: u64,
}

/// Commands to a scripted model, obeyed from its next step on.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Controls {
    /// The next step panics.
    pub fn panic_next(&self) {
        self.state().fault = Some(Fault::Panic);
    }

    /// The next step's output lacks a row.
    pub fn wrong_output_next(&self) {
        self.state().fault = Some(Fault::WrongOutput);
    }

    /// Steps hang, from the next on, until [`Controls::release`].
    pub fn hold(&self) {
        self.state().held = true;
    }

    /// Lets a held model go on.
    pub fn release(&self) {
        self.state().held = false;
        self.state.1.notify_all();
    }

    /// Changes the script's `step_time`.
    pub fn set_step_time(&self, time: Duration) {
        self.state().step_time = Some(time);
    }

    /// Steps begun so far, a held one included.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Waits until `steps` steps have begun; false if that takes longer than `timeout`.
    pub fn wait_for_steps(&self, steps: u64, timeout: Duration) -> bool {
        let early = |state: &mut State| state.steps < steps;
        let result = self.state.1.wait_timeout_while(self.state(), timeout, early);
        !result.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Counts a step that begins.
    pub(super) fn begin(&self) {
        self.state().steps += 1;
        self.state.1.notify_all();
    }

    /// Waits until a step that began at `began` is done; returns what is to break in it.
    pub(super) fn finish(&self, began: Instant, step_time: Duration, token_time: Duration) -> Option<Fault> {
        let held = |state: &mut State| state.held;
        let mut state = self.state.1.wait_while(self.state(), held).unwrap_or_else(PoisonError::into_inner);
        let fault = state.fault.take();
        let time = state.step_time.unwrap_or(step_time) + token_time;
        drop(state);
        let left = time.saturating_sub(began.elapsed());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        fault
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

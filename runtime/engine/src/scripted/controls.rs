//! Commanding a scripted model from outside the engine that owns it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Panic,
    Device,
    WrongOutput,
}

/// How a model's arithmetic may go wrong, from one step on and for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Every token is another than the script's.
    WrongTokens,
    /// Logits are not finite: as the samplers do, it gives token 0 at a log-probability of minus infinity.
    NotANumber,
}

/// What a model may do wrong about tokens and drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// The first row that was fed drafts takes one more of them as accepted than hold.
    AcceptsTooMany,
    /// The first row that was fed drafts samples nothing.
    SamplesNothing,
    /// The first row that was fed drafts samples a token that the vocabulary does not have.
    SamplesStranger,
    /// One draft is missing for the next step.
    DraftsTooFew,
    /// There is one more draft than due for the next step.
    DraftsTooMany,
    /// A draft for the next step is not in the vocabulary.
    DraftsStranger,
    /// A row that is due verified drafts has a token without.
    DoesNotVerify,
    /// A row that is due a token has verified drafts.
    Verifies,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    breach: Option<Breach>,
    poison: Option<Poison>,
    held: bool,
    step_time: Option<Duration>,
    writes_fail: bool,
    reads_to_fail: usize,
    /// How much longer the next step takes.
    slow: Duration,
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

    /// The next step fails as a device does, which ends a process: it is noted as the process's fault.
    pub fn device_fault_next(&self) {
        self.state().fault = Some(Fault::Device);
    }

    /// What is sampled is wrong from the next step on.
    pub fn poison(&self, how: Poison) {
        self.state().poison = Some(how);
    }

    /// The next step takes so much longer.
    pub fn slow_next(&self, time: Duration) {
        self.state().slow = time;
    }

    /// Whether blocks can be written to disk from now on.
    pub fn fail_offload_writes(&self, fail: bool) {
        self.state().writes_fail = fail;
    }

    /// The next `steps` steps with blocks on disk cannot read them.
    pub fn fail_offload_reads(&self, steps: usize) {
        self.state().reads_to_fail = steps;
    }

    pub(super) fn writes_fail(&self) -> bool {
        self.state().writes_fail
    }

    pub(super) fn read_fails(&self) -> bool {
        let mut state = self.state();
        let left = state.reads_to_fail;
        state.reads_to_fail = left.saturating_sub(1);
        left > 0
    }

    /// The next step's output lacks a row.
    pub fn wrong_output_next(&self) {
        self.state().fault = Some(Fault::WrongOutput);
    }

    /// The next row that can break the contract so does.
    pub fn breach_next(&self, breach: Breach) {
        self.state().breach = Some(breach);
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
        let slow = std::mem::take(&mut state.slow);
        let time = state.step_time.unwrap_or(step_time) + token_time + slow;
        drop(state);
        let left = time.saturating_sub(began.elapsed());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        fault
    }

    /// How the arithmetic goes wrong, if it does.
    pub(super) fn poisoned(&self) -> Option<Poison> {
        self.state().poison
    }

    /// Offers the commanded breach to `commit`, and clears it if `commit` carried it out.
    pub(super) fn commit_breach(&self, commit: impl FnOnce(Breach) -> bool) {
        let mut state = self.state();
        if state.breach.is_some_and(commit) {
            state.breach = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

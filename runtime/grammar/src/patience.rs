//! The time limit of a compilation, and the trial in another process before it.

use crate::error::GrammarError;
use llguidance::CancellationHandle;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Compiles grammars where that can be ended from outside: what ended there in time is compiled here as well,
/// where it cannot be.
pub trait Trial: Send + Sync + Debug {
    /// Compiles a grammar, written down for [`crate::Grammars::attempt`]. It is over soon after `until`, or
    /// after `patience` is lost. Returns the bytes that it takes, compiled.
    ///
    /// # Errors
    /// What is wrong with the grammar, or that it takes too much time or memory.
    fn attempt(&self, grammar: &[u8], until: Instant, patience: &Patience) -> Result<usize, GrammarError>;
}

/// The time limit of a grammar, shared by the compiling thread and the waiting request.
#[derive(Debug)]
pub struct Patience {
    until: Instant,
    limit: Duration,
    lost: AtomicBool,
    /// Of the mask that is computed now.
    mask: Mutex<Option<CancellationHandle>>,
    trial: Option<Arc<dyn Trial>>,
    /// Of what was tried, compiled.
    bytes: AtomicUsize,
}

impl Patience {
    /// From now on for so long, with a place to try what is not small.
    pub fn new(limit: Duration, trial: Option<Arc<dyn Trial>>) -> Arc<Patience> {
        let now = Instant::now();
        let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(86400));
        let (lost, bytes) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Patience { until, limit, lost, mask: Mutex::default(), trial, bytes })
    }

    /// The request has gone: the compilation is aborted where possible.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        if let Some(mask) = self.mask.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            mask.cancel();
        }
    }

    /// Bytes that the grammars take, compiled, that were tried.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the request has gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// The error for what is not done in time.
    pub fn over(&self) -> GrammarError {
        GrammarError::new(format!(
            "takes longer than the {:?} that a grammar may take to compile (--grammar-timeout); make it smaller or simpler",
            self.limit
        ))
    }

    /// Goes on, or not.
    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        if self.is_lost() { Err(self.over()) } else { Ok(()) }
    }

    /// Tries a grammar that is not small, for half of the time that is left: it is compiled once more after
    /// that.
    pub(crate) fn attempt(&self, grammar: &[u8]) -> Result<(), GrammarError> {
        self.check()?;
        let Some(trial) = &self.trial else { return Ok(()) };
        let now = Instant::now();
        let bytes = trial.attempt(grammar, now + self.until.saturating_duration_since(now) / 2, self)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    /// Says which mask is computed, so that it can be ended.
    pub(crate) fn computes(&self, mask: Option<CancellationHandle>) {
        let mut computed = self.mask.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = &mask
            && self.is_lost()
        {
            mask.cancel();
        }
        *computed = mask;
    }
}

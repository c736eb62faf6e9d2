//! The time limit of a compilation, and its trial in another process.

use crate::error::GrammarError;
use llguidance::CancellationHandle;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Compiles grammars where that can be aborted from outside. A grammar that compiled there in time is then
/// compiled here as well, where it cannot be aborted.
pub trait Trial: Send + Sync + Debug {
    /// Compiles a grammar serialised for [`crate::Grammars::attempt`]. Returns soon after `until`, or after
    /// `patience` is lost, at the latest. Returns the compiled grammar's size in bytes.
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
    /// The abort handle of the mask being computed.
    mask: Mutex<Option<CancellationHandle>>,
    trial: Option<Arc<dyn Trial>>,
    /// Compiled size of the grammars tried.
    bytes: AtomicUsize,
}

impl Patience {
    /// Starts a time limit, with a trial for grammars that are not small.
    pub fn new(limit: Duration, trial: Option<Arc<dyn Trial>>) -> Arc<Patience> {
        let now = Instant::now();
        let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(86400));
        let (lost, bytes) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Patience { until, limit, lost, mask: Mutex::default(), trial, bytes })
    }

    /// Gives up because the request is gone: aborts the compilation if possible.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        if let Some(mask) = self.mask.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            mask.cancel();
        }
    }

    /// Compiled size of the grammars tried, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the request was given up, or its time is over.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// The error for work that exceeds the limit.
    pub fn over(&self) -> GrammarError {
        GrammarError::new(format!(
            "takes longer than the {:?} that a grammar may take to compile (--grammar-timeout); make it smaller or simpler",
            self.limit
        ))
    }

    /// Fails once the request is lost.
    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        if self.is_lost() { Err(self.over()) } else { Ok(()) }
    }

    /// Tries a grammar that is not small, within half of the remaining time, because it is compiled once more
    /// afterwards.
    pub(crate) fn attempt(&self, grammar: &[u8]) -> Result<(), GrammarError> {
        self.check()?;
        let Some(trial) = &self.trial else { return Ok(()) };
        let now = Instant::now();
        let bytes = trial.attempt(grammar, now + self.until.saturating_duration_since(now) / 2, self)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    /// Sets the mask being computed, so that it can be aborted.
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

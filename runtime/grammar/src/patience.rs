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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// A trial that answers the same to every grammar, and notes how much time it was given.
    #[derive(Debug)]
    struct Scripted {
        answer: Result<usize, GrammarError>,
        /// What it does to the patience meanwhile.
        loses: bool,
        given: AtomicU64,
    }

    impl Trial for Scripted {
        fn attempt(
            &self,
            grammar: &[u8],
            until: Instant,
            patience: &Patience,
        ) -> Result<usize, GrammarError> {
            assert_eq!(grammar, b"grammar");
            let given = until.saturating_duration_since(Instant::now());
            self.given.store(given.as_secs(), Ordering::Relaxed);
            if self.loses {
                patience.lose();
            }
            self.answer.clone()
        }
    }

    fn tried(limit: u64, answer: Result<usize, GrammarError>, loses: bool) -> (Arc<Scripted>, Arc<Patience>) {
        let trial = Arc::new(Scripted { answer, loses, given: AtomicU64::new(0) });
        let as_trial: Arc<dyn Trial> = Arc::<Scripted>::clone(&trial);
        (trial, Patience::new(Duration::from_secs(limit), Some(as_trial)))
    }

    #[test]
    fn patience_is_lost_when_the_time_is_over_or_the_request_gone() {
        let patience = Patience::new(Duration::from_secs(600), None);
        assert!(!patience.is_lost() && patience.check().is_ok());
        patience.lose();
        assert!(patience.is_lost());
        let error = patience.check().expect_err("it is lost");
        assert!(error.message.contains("takes longer than the 600s"), "{error}");
        assert!(Patience::new(Duration::ZERO, None).is_lost());
        assert!(!Patience::new(Duration::MAX, None).is_lost(), "as long as there is");
    }

    #[test]
    fn the_mask_that_is_computed_is_aborted() {
        let patience = Patience::new(Duration::from_secs(600), None);
        let masks =
            [CancellationHandle::default(), CancellationHandle::default(), CancellationHandle::default()];
        let aborted = || masks.each_ref().map(CancellationHandle::is_cancelled);
        patience.computes(Some(masks[0].clone()));
        patience.computes(Some(masks[1].clone()));
        assert_eq!(aborted(), [false; 3]);
        patience.lose();
        assert_eq!(aborted(), [false, true, false], "only the last is computed still");
        patience.computes(Some(masks[2].clone()));
        assert_eq!(aborted(), [false, true, true], "one that begins later as well");
        let patience = Patience::new(Duration::from_secs(600), None);
        patience.computes(Some(masks[0].clone()));
        patience.computes(None);
        patience.lose();
        assert!(!masks[0].is_cancelled(), "one that is done is left alone");
    }

    #[test]
    fn a_trial_has_half_of_the_time_and_its_bytes_are_counted() {
        let (trial, patience) = tried(1_000, Ok(70), false);
        assert_eq!((patience.attempt(b"grammar"), patience.bytes()), (Ok(()), 70));
        assert_eq!((patience.attempt(b"grammar"), patience.bytes()), (Ok(()), 140));
        let given = trial.given.load(Ordering::Relaxed);
        assert!((400..=500).contains(&given), "{given} s");
        let refused = GrammarError::new("is refused");
        let (_, patience) = tried(1_000, Err(refused.clone()), false);
        assert_eq!((patience.attempt(b"grammar"), patience.bytes()), (Err(refused), 0));
        assert_eq!(Patience::new(Duration::from_secs(600), None).attempt(b"none is tried"), Ok(()));
    }

    #[test]
    fn nothing_is_tried_and_nothing_accepted_once_patience_is_lost() {
        let (trial, patience) = tried(1_000, Ok(70), true);
        assert!(patience.attempt(b"grammar").is_err(), "it was lost meanwhile");
        trial.given.store(0, Ordering::Relaxed);
        assert!(patience.attempt(b"grammar").is_err());
        assert_eq!(trial.given.load(Ordering::Relaxed), 0, "no second attempt");
    }
}

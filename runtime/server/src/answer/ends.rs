//! What ends an answer besides its engine.

use super::AnswerError;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A time limit, and the end of the server.
#[derive(Debug)]
pub(crate) struct Ends {
    /// The time limit and its deadline. Kept here and not in the engine, so that it holds even when a step
    /// hangs.
    limit: Option<(Duration, Instant)>,
    condemned: watch::Receiver<Option<String>>,
}

impl Ends {
    /// From now on, within `limit`, and until `condemned` says why no answer will be finished.
    pub(crate) fn new(limit: Option<Duration>, condemned: watch::Receiver<Option<String>>) -> Ends {
        // A deadline that the clock cannot represent is none.
        let limit = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        Ends { limit, condemned }
    }

    /// An end that never comes.
    pub(crate) fn never() -> Ends {
        Ends::new(None, watch::Sender::new(None).subscribe())
    }

    /// Waits for the first. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> AnswerError {
        let limit = self.limit;
        let late = async {
            match limit {
                None => std::future::pending().await,
                Some((limit, end)) => {
                    sleep_until(end).await;
                    AnswerError::Timeout(limit)
                }
            }
        };
        tokio::select! {
            error = late => error,
            cause = condemned(&mut self.condemned) => AnswerError::Condemned(cause),
        }
    }
}

/// Waits for the cause.
async fn condemned(cause: &mut watch::Receiver<Option<String>>) -> String {
    loop {
        let known = cause.borrow_and_update().clone();
        if let Some(known) = known {
            return known;
        }
        // Who would say so may be gone.
        if cause.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

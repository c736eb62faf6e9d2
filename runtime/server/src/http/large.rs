//! Bounds the memory of large requests: few long texts are processed at a time, and their memory is returned.

use crate::error::ApiError;
use crate::process::allocator::trim;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Bytes up to which a text is short. Tokenizing takes some hundred times the text's size while it runs.
const SHORT: usize = 64 << 10;
/// Short texts processed at a time.
const SHORT_AT_ONCE: usize = 16;
/// Long texts processed at a time: the largest take the memory of two.
const LONG_AT_ONCE: usize = 2;
/// Bytes of a body after which memory is returned to the system.
const LARGE: u64 = 256 << 10;
/// Delay before memory is returned; the next request may reuse it.
const LATER: Duration = Duration::from_secs(1);

/// Turns for work on texts. Short texts do not wait for long ones.
pub(crate) struct Turns {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Turns {
        let of = |turns| Arc::new(Semaphore::new(turns));
        Turns { short: of(SHORT_AT_ONCE), long: of(LONG_AT_ONCE) }
    }
}

impl Turns {
    /// Runs work on a text of so many bytes, which may take seconds, on a blocking thread. A client that
    /// leaves before its turn gives it up; a turn that has begun lasts until the work ends.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("preparing the prompt failed: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "text", message)
        };
        let turns = if bytes <= SHORT { &self.short } else { &self.long };
        let turn = Arc::clone(turns).acquire_owned().await.map_err(|error| failed(&error))?;
        let work = move || {
            let done = work();
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))
    }
}

/// Returns memory some time after a large request: the allocator keeps what short-lived threads freed.
pub(super) async fn give_back(request: Request<Body>, next: Next) -> Response {
    static SOON: AtomicBool = AtomicBool::new(false);
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse().ok());
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let large = length.map_or(chunked, |length: u64| length >= LARGE);
    let response = next.run(request).await;
    if large && !SOON.swap(true, Ordering::Relaxed) {
        tokio::spawn(async {
            tokio::time::sleep(LATER).await;
            SOON.store(false, Ordering::Relaxed);
            // Not needed when the runtime ends.
            let _ = tokio::task::spawn_blocking(trim).await;
        });
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Waker};

    #[tokio::test]
    async fn long_texts_are_few_at_a_time_and_hold_up_no_short_ones() {
        let turns = Turns::default();
        let (begun, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let long = || {
            let (begun, most, released) = (Arc::clone(&begun), Arc::clone(&most), Arc::clone(&released));
            turns.take(SHORT + 1, move || {
                most.fetch_max(begun.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _ = released.lock().expect("no panic").recv();
                begun.fetch_sub(1, Ordering::SeqCst);
            })
        };
        let mut all: Vec<_> = (0..5).map(|_| Box::pin(long())).collect();
        for one in &mut all {
            let polled = one.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        assert_eq!(turns.take(SHORT, || 7).await.expect("its turn"), 7);
        // A client that leaves during the work frees no turn.
        drop(all.remove(0));
        assert_eq!(turns.long.available_permits(), 0);
        drop(release);
        for one in all {
            one.await.expect("its turn");
        }
        assert!(most.load(Ordering::SeqCst) <= LONG_AT_ONCE);
        while turns.long.available_permits() < LONG_AT_ONCE {
            tokio::task::yield_now().await;
        }
    }
}

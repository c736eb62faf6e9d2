//! What images may take of a server's memory: patches of requests that wait or are answered, and decoding.
//!
//! Both are known before a byte is decoded, from a file's header. Patches are refused where they do not fit;
//! who wants to decode waits for a turn, which is short.

use crate::error::{ApiError, wrong};
use crate::process::out;
use axum::http::StatusCode;
use std::num::NonZero;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that decoding may claim, of all images that are decoded at a time.
pub(crate) const DECODING_BYTES: u64 = 1 << 30;
/// Images decoded at a time, however small, and images fetched at a time.
const AT_ONCE: u64 = 4;

/// Bytes of a permit for patches.
const OF_PATCHES: u64 = 1 << 10;
/// Bytes of a permit for decoding.
const OF_DECODING: u64 = 1 << 20;

/// Memory for images.
#[derive(Debug)]
pub(crate) struct ImageRoom {
    bytes: u64,
    patches: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
    fetching: Arc<Semaphore>,
}

impl ImageRoom {
    /// Room for so many bytes of patches, in whole KiB.
    pub(crate) fn new(bytes: u64) -> ImageRoom {
        let bytes = bytes - bytes % OF_PATCHES;
        let semaphore = |bytes: u64, of: u64| {
            let permits = usize::try_from(bytes / of).unwrap_or(Semaphore::MAX_PERMITS);
            Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
        };
        ImageRoom {
            bytes,
            patches: semaphore(bytes, OF_PATCHES),
            decoding: semaphore(DECODING_BYTES, OF_DECODING),
            fetching: semaphore(AT_ONCE, 1),
        }
    }

    /// Bytes for patches in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that patches have claimed.
    pub(crate) fn claimed(&self) -> u64 {
        self.bytes.saturating_sub(self.patches.available_permits() as u64 * OF_PATCHES)
    }

    /// Claims bytes for the patches of a request's images, until what is returned is dropped; `at` is the
    /// field of its conversation, and `wait` how long to wait where others have taken them.
    ///
    /// # Errors
    /// 400 when they are more than there is in all, 429 when others have taken them.
    pub(crate) fn claim(
        &self,
        bytes: u64,
        at: &str,
        wait: impl FnOnce() -> NonZero<u32>,
    ) -> Result<Arc<OwnedSemaphorePermit>, ApiError> {
        let permits = bytes.div_ceil(OF_PATCHES);
        let all = out::bytes(self.bytes);
        if permits > self.bytes / OF_PATCHES {
            let what = out::bytes(bytes);
            let error = wrong!(
                at,
                "has images that take {what} of memory; this server has {all} for images (--image-memory)"
            );
            return Err(ApiError { code: "image_too_large", ..error });
        }
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        match Arc::clone(&self.patches).try_acquire_many_owned(permits) {
            Ok(claim) => Ok(Arc::new(claim)),
            Err(_) => {
                let taken = out::bytes(self.claimed());
                let message = format!(
                    "images of other requests take {taken} of the {all} that this server has for them \
                     (--image-memory); try again later"
                );
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "image_memory_full", message);
                Err(ApiError { retry_after: Some(wait()), ..error })
            }
        }
    }

    /// Runs work that claims at most so many bytes while it runs, on a blocking thread, once there is room
    /// for it. A client that leaves before gives its turn up; work that has begun is done.
    ///
    /// # Errors
    /// When the work panics.
    pub(crate) async fn decode<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let bytes = bytes.clamp(DECODING_BYTES / AT_ONCE, DECODING_BYTES);
        let permits = u32::try_from(bytes.div_ceil(OF_DECODING)).unwrap_or(u32::MAX);
        in_turn(&self.decoding, permits, "decoding", work).await
    }

    /// Runs work that waits for another host, likewise.
    ///
    /// # Errors
    /// When the work panics.
    pub(crate) async fn fetch<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        in_turn(&self.fetching, 1, "fetching", work).await
    }
}

/// Runs work on a blocking thread once it has so many permits, which it gives back at its end.
async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    permits: u32,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |error: &dyn std::fmt::Display| {
        let message = format!("{what} an image failed: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "image", message)
    };
    let turn = Arc::clone(turns).acquire_many_owned(permits).await.map_err(|error| failed(&error))?;
    let work = move || {
        let done = work();
        drop(turn);
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Context, Waker};
    use std::time::Duration;

    #[test]
    fn patches_are_claimed_until_they_are_dropped_and_no_more_than_there_is() {
        let room = ImageRoom::new((10 << 10) + 5);
        let claim = |bytes| room.claim(bytes, "messages", || NonZero::new(7).expect("not 0"));
        let first = claim(6 << 10).expect("there is room");
        assert_eq!(room.claimed(), 6 << 10);
        let also = Arc::clone(&first);
        let full = claim((4 << 10) + 1).expect_err("others have it");
        assert_eq!((full.status.as_u16(), full.code), (429, "image_memory_full"));
        assert_eq!(full.retry_after.map(NonZero::get), Some(7));
        let large = claim((10 << 10) + 1).expect_err("it is more than all");
        assert_eq!((large.status.as_u16(), large.code), (400, "image_too_large"));
        assert!(large.message.contains("`messages` has images that take"), "{}", large.message);
        let rest = claim(4 << 10).expect("it is what is left");
        drop((rest, first));
        assert_eq!(room.claimed(), 6 << 10);
        drop(also);
        claim(10 << 10).expect("all is there again");
    }

    /// Starts works of so many bytes that end when all are begun that can be; the most that ran at a time.
    async fn most_at_once(bytes: u64, works: usize, expected: usize) -> usize {
        let room = ImageRoom::new(0);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (release, released) = channel::<()>();
        let released: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(released));
        let work = || {
            let (running, most, released) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&released));
            room.decode(bytes, move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _ = released.lock().expect("no panic").recv();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        };
        let mut all: Vec<_> = (0..works).map(|_| Box::pin(work())).collect();
        for one in &mut all {
            assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        while running.load(Ordering::SeqCst) < expected {
            tokio::task::yield_now().await;
        }
        // Time for one more, were it let in.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(release);
        for one in all {
            one.await.expect("its turn");
        }
        assert_eq!(room.decoding.available_permits() as u64, DECODING_BYTES / OF_DECODING);
        most.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn few_images_are_decoded_at_a_time_and_large_ones_alone() {
        let all = AT_ONCE as usize;
        assert_eq!(most_at_once(1, 9, all).await, all);
        assert_eq!(most_at_once(DECODING_BYTES / 2, 5, 2).await, 2);
        assert_eq!(most_at_once(DECODING_BYTES / 2 + 1, 3, 1).await, 1);
    }
}

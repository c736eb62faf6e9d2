//! The staging area: pages that the disk writes and the device reads.

use monomorph_store::{ALIGN, PageMemory};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that is divided into pages.
///
/// # Safety
/// `start` and `len` return the same for the life of the value, even if it is moved: bytes that it owns,
/// initialised. They are accessed only through these functions.
pub(crate) unsafe trait Area: Debug + Send + Sync + 'static {
    /// The first byte.
    fn start(&self) -> NonNull<u8>;
    /// Number of bytes.
    fn len(&self) -> usize;
}

/// Memory for pages of equal size, which are lent to the store one at a time.
#[derive(Debug)]
pub(crate) struct Staging<M> {
    memory: Arc<M>,
    page_bytes: usize,
}

impl<M> Clone for Staging<M> {
    fn clone(&self) -> Self {
        Staging { memory: Arc::clone(&self.memory), page_bytes: self.page_bytes }
    }
}

impl<M: Area> Staging<M> {
    /// Divides `memory` into whole pages of `page_bytes`, a multiple of [`ALIGN`].
    pub(super) fn new(memory: M, page_bytes: usize) -> Staging<M> {
        let start = memory.start().addr().get();
        assert!(page_bytes.is_multiple_of(ALIGN) && start.is_multiple_of(ALIGN), "pages are aligned");
        Staging { memory: Arc::new(memory), page_bytes }
    }

    /// The first byte and the size of consecutive pages.
    fn range(&self, first: usize, count: usize) -> (NonNull<u8>, usize) {
        let whole = self.memory.len() / self.page_bytes;
        assert!(first <= whole && count <= whole - first, "there are no such pages");
        // SAFETY: within the memory, by the check.
        let start = unsafe { self.memory.start().add(first * self.page_bytes) };
        (start, count * self.page_bytes)
    }

    /// Lends a page to the store.
    ///
    /// # Safety
    /// Until the result is dropped, no reference to the page exists, and it is not lent again.
    pub(super) unsafe fn lend(&self, page: usize) -> Lent<M> {
        let (start, len) = self.range(page, 1);
        Lent { start, len, _memory: Arc::clone(&self.memory) }
    }

    /// Consecutive pages.
    ///
    /// # Safety
    /// None of them is lent while the result lives.
    pub(crate) unsafe fn pages(&self, first: usize, count: usize) -> &[u8] {
        let (start, len) = self.range(first, count);
        // SAFETY: initialised, in bounds, and not written, by the caller's promise.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

/// A page lent to the store.
#[derive(Debug)]
pub(crate) struct Lent<M> {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory alive while the disk may write to it.
    _memory: Arc<M>,
}

// SAFETY: the memory is not tied to a thread.
unsafe impl<M: Area> Send for Lent<M> {}

// SAFETY: start and length never change; the memory is initialised and lives as long as the value; it is
// aligned to ALIGN because its area and all page sizes are; the promise made to `lend` makes the value its
// only user.
unsafe impl<M: Area> PageMemory for Lent<M> {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }
}

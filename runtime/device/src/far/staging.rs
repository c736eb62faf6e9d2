//! The staging area: pages that a disk fills and a device reads.

use monomorph_store::{ALIGN, PageMemory};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that pages are cut from.
///
/// # Safety
/// `start` and `len` say the same for the life of the value, wherever it is moved: bytes that are its own,
/// and initialised. Only through these functions does anybody come to them.
pub(crate) unsafe trait Area: Debug + Send + Sync + 'static {
    /// The first byte.
    fn start(&self) -> NonNull<u8>;
    /// How many there are.
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
    /// The whole pages of so many bytes, a multiple of [`ALIGN`], in `memory`.
    pub(super) fn new(memory: M, page_bytes: usize) -> Staging<M> {
        let start = memory.start().addr().get();
        assert!(page_bytes.is_multiple_of(ALIGN) && start.is_multiple_of(ALIGN), "pages are aligned");
        Staging { memory: Arc::new(memory), page_bytes }
    }

    /// Where some pages in a row begin, and how many bytes they are.
    fn range(&self, first: usize, count: usize) -> (NonNull<u8>, usize) {
        let whole = self.memory.len() / self.page_bytes;
        assert!(first <= whole && count <= whole - first, "there are no such pages");
        // SAFETY: within the memory, by the check.
        let start = unsafe { self.memory.start().add(first * self.page_bytes) };
        (start, count * self.page_bytes)
    }

    /// A page, to be lent to the store.
    ///
    /// # Safety
    /// Until the result is dropped nobody has a reference to the page, and there is no other value of it.
    pub(super) unsafe fn lend(&self, page: usize) -> Lent<M> {
        let (start, len) = self.range(page, 1);
        Lent { start, len, _memory: Arc::clone(&self.memory) }
    }

    /// Some pages in a row.
    ///
    /// # Safety
    /// None of them is lent while the result lives.
    pub(crate) unsafe fn pages(&self, first: usize, count: usize) -> &[u8] {
        let (start, len) = self.range(first, count);
        // SAFETY: initialised, in bounds, and by the caller's promise written by nobody.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

/// A page that is lent.
#[derive(Debug)]
pub(crate) struct Lent<M> {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory for as long as a disk may write to it.
    _memory: Arc<M>,
}

// SAFETY: the memory has no ties to a thread.
unsafe impl<M: Area> Send for Lent<M> {}

// SAFETY: start and length never change; the memory is initialised, begins at a multiple of ALIGN as its area
// and all page sizes do, lives as long as the value, and is the value's alone by the promise made to `lend`.
unsafe impl<M: Area> PageMemory for Lent<M> {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }
}

//! The staging area: pages that a disk fills and lanes read.

use super::super::memory::{Memory, Plain};
use monomorph_store::{ALIGN, PageMemory};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory for pages of equal size, which are lent to the store one at a time.
#[derive(Clone, Debug)]
pub(super) struct Staging {
    memory: Arc<Memory<u8>>,
    page_bytes: usize,
}

impl Staging {
    /// So many pages of so many bytes, a multiple of [`ALIGN`].
    pub fn new(pages: usize, page_bytes: usize) -> Option<Staging> {
        assert!(page_bytes.is_multiple_of(ALIGN), "a page is aligned in memory");
        let memory = Arc::new(Memory::try_zeroed(pages.checked_mul(page_bytes)?)?);
        Some(Staging { memory, page_bytes })
    }

    /// A page, to be lent to the store.
    ///
    /// # Safety
    /// Until the result is dropped nobody has a reference to the page, and there is no other value of it.
    pub unsafe fn lend(&self, page: usize) -> Lent {
        // SAFETY: by the caller's promise nobody else uses the page.
        let bytes = unsafe { self.memory.slice_mut(page * self.page_bytes, self.page_bytes) };
        Lent { start: NonNull::from(&mut bytes[0]), len: bytes.len(), _memory: Arc::clone(&self.memory) }
    }

    /// Some pages in a row.
    ///
    /// # Safety
    /// None of them is lent while the result lives.
    pub unsafe fn pages(&self, first: usize, count: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.slice(first * self.page_bytes, count * self.page_bytes) }
    }
}

/// A page that is lent.
#[derive(Debug)]
pub(super) struct Lent {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory for as long as a disk may write to it.
    _memory: Arc<Memory<u8>>,
}

// SAFETY: the memory has no ties to a thread.
unsafe impl Send for Lent {}

// SAFETY: start and length never change; the memory is zeroed at first, begins at a multiple of ALIGN as all mappings and all
// page sizes do, lives as long as the value, and is the value's alone by the promise made to `lend`.
unsafe impl PageMemory for Lent {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// A window that is there.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Staged<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) page_bytes: usize,
    /// Blocks of a page.
    pub(super) group: usize,
    /// From one block to the next.
    pub(super) part_bytes: usize,
}

impl<'a> Staged<'a> {
    /// Of no window.
    pub const NONE: Staged<'a> = Staged { bytes: &[], page_bytes: 0, group: 1, part_bytes: 0 };

    /// `len` elements from element `from` of the part of a block, counted in the window.
    #[inline(always)]
    pub fn elements<E: Plain>(&self, block: usize, from: usize, len: usize) -> &'a [E] {
        let (page, at) = (block / self.group, block % self.group);
        let start = page * self.page_bytes + at * self.part_bytes + from * size_of::<E>();
        let bytes = &self.bytes[start..start + len * size_of::<E>()];
        // SAFETY: every bit pattern is a value of a plain number; that the middle is all of it is checked.
        let (before, elements, after) = unsafe { bytes.align_to::<E>() };
        assert!(before.is_empty() && after.is_empty(), "parts are aligned as their elements are");
        elements
    }
}

//! Zeroed memory whose pages become resident when first touched.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Elements for which all-zero bits are a valid value.
///
/// # Safety
/// Implementors are plain numbers or `repr(C)` structures of them: every bit pattern is a value.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: plain numbers.
unsafe impl Plain for f32 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::bf16 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::f16 {}

/// A zeroed array that several lanes may write in disjoint parts. It starts at a multiple of 64 bytes, and
/// its pages become resident when first touched.
pub(crate) struct Memory<T> {
    start: NonNull<u8>,
    /// In elements.
    len: usize,
    /// In bytes, as allocated from the system.
    claimed: usize,
    elements: PhantomData<T>,
}

// SAFETY: the memory is owned, and access to it is either exclusive or through the unsafe functions below,
// whose callers promise that concurrent accesses do not conflict.
unsafe impl<T: Plain> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Memory<T> {}

impl<T: Plain> Memory<T> {
    /// `len` zeros.
    ///
    /// # Panics
    /// When the address space is exhausted, as every allocation of the standard library does.
    pub(crate) fn zeroed(len: usize) -> Memory<T> {
        Self::try_zeroed(len).unwrap_or_else(|| panic!("no address space for {len} elements"))
    }

    /// `len` zeros; `None` when the address space is exhausted.
    pub(crate) fn try_zeroed(len: usize) -> Option<Memory<T>> {
        const { assert!(align_of::<T>() <= 64) };
        let bytes = len.checked_mul(size_of::<T>())?.max(64);
        let claimed = bytes.checked_next_multiple_of(4096)?;
        let start = pages::claim(claimed)?;
        Some(Memory { start, len, claimed, elements: PhantomData })
    }

    /// Asks the system for large pages. For memory that is written once and read in streams.
    pub(crate) fn advise_large_pages(&self) {
        pages::advise_large(self.start, self.claimed);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Elements `at .. at + len`.
    ///
    /// # Safety
    /// No lane writes any of them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &[T] {
        assert!(at <= self.len && len <= self.len - at, "out of the buffer");
        // SAFETY: in bounds by the check, initialised (zeroed), unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<T>().add(at), len) }
    }

    /// Elements `at .. at + len`, mutably.
    ///
    /// # Safety
    /// No other reference to any of them is used while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice_mut(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "out of the buffer");
        // SAFETY: in bounds by the check, initialised (zeroed), exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast::<T>().add(at), len) }
    }

    /// Copies elements `at .. at + len` to the front of `into`, as bytes; returns the rest of it.
    ///
    /// # Panics
    /// When there are no such elements, or they are larger than `into`.
    pub(crate) fn read<'a>(&mut self, at: usize, len: usize, into: &'a mut [u8]) -> &'a mut [u8] {
        let bytes = self.bytes_mut(at, len);
        let (into, rest) = into.split_at_mut(bytes.len());
        into.copy_from_slice(bytes);
        rest
    }

    /// Writes what [`Self::read`] read, from the front of `from`; returns the rest of it.
    ///
    /// # Panics
    /// As [`Self::read`].
    pub(crate) fn write<'a>(&mut self, at: usize, len: usize, from: &'a [u8]) -> &'a [u8] {
        let bytes = self.bytes_mut(at, len);
        let (from, rest) = from.split_at(bytes.len());
        bytes.copy_from_slice(from);
        rest
    }

    /// Elements `at .. at + len` as bytes.
    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: `self` is borrowed exclusively.
        let elements = unsafe { self.slice_mut(at, len) };
        // SAFETY: plain numbers without gaps, for which every bit pattern is a value, borrowed as long as the
        // result.
        unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), size_of_val(elements)) }
    }

    /// All elements.
    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: `self` is borrowed exclusively.
        unsafe { self.slice_mut(0, self.len) }
    }
}

// SAFETY: allocated once, zeroed, and owned by the value; a staging area reaches it through no other
// reference.
unsafe impl crate::kv_offload::Area for Memory<u8> {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        pages::give_back(self.start, self.claimed);
    }
}

impl<T> std::fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} x {})", self.len, std::any::type_name::<T>())
    }
}

#[cfg(target_os = "linux")]
mod pages {
    //! Anonymous mappings: zero, and resident only where touched.

    use std::ptr::NonNull;

    pub(super) fn claim(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: a fresh private anonymous mapping touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
    }

    pub(super) fn advise_large(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the range is our own mapping; the advice changes no contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    pub(super) fn give_back(start: NonNull<u8>, bytes: usize) {
        // SAFETY: exactly what `claim` returned, freed once.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    //! The global allocator.

    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) fn claim(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub(super) fn advise_large(_: NonNull<u8>, _: usize) {}

    pub(super) fn give_back(start: NonNull<u8>, bytes: usize) {
        // SAFETY: exactly what `claim` returned, freed once.
        unsafe { dealloc(start.as_ptr(), Layout::from_size_align_unchecked(bytes, 64)) };
    }
}

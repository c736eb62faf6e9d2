//! Memory for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of addresses, sizes and offsets, which direct I/O demands.
pub const ALIGN: usize = 4096;

/// Bytes of the smallest page that holds so many, if none are needed too.
pub const fn whole_page(bytes: usize) -> usize {
    if bytes == 0 { ALIGN } else { bytes.next_multiple_of(ALIGN) }
}

/// Memory of one page, which can be lent to a device for as long as the value is not touched.
///
/// # Safety
/// `start` and `len` say the same for the life of the value, wherever it is moved. The address is a multiple
/// of [`ALIGN`], and the memory belongs to the value: it is initialised, and read or written only through the
/// value or with its consent.
pub unsafe trait PageMemory: Send + 'static {
    /// The first byte.
    fn start(&self) -> NonNull<u8>;
    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The page's content.
    fn bytes(&self) -> &[u8] {
        // SAFETY: what the trait demands.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: what the trait demands, and the value is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }
}

/// A page of ordinary memory.
pub struct Page {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and has no ties to a thread.
unsafe impl Send for Page {}
// SAFETY: a shared page is only read.
unsafe impl Sync for Page {}

impl Page {
    /// Zeros; `bytes` above 0 are rounded up to a [`whole_page`].
    pub fn zeroed(bytes: usize) -> Page {
        let layout = Layout::from_size_align(whole_page(bytes.max(1)), ALIGN).expect("pages are below 1 GiB");
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc_zeroed(layout) };
        Page { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

// SAFETY: allocated once with this layout, zeroed, owned, and freed when dropped.
unsafe impl PageMemory for Page {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({} bytes)", self.len())
    }
}

//! Staged blocks, as read by lanes.

use super::super::memory::Plain;

/// A window that has been read.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Staged<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) page_bytes: usize,
    /// Blocks per page.
    pub(super) group: usize,
    /// Bytes between consecutive blocks.
    pub(super) part_bytes: usize,
}

impl<'a> Staged<'a> {
    /// No window.
    pub const NONE: Staged<'a> = Staged { bytes: &[], page_bytes: 0, group: 1, part_bytes: 0 };

    /// `len` elements from element `from` of a block's part; `block` is an index in the window.
    #[inline(always)]
    pub fn elements<E: Plain>(&self, block: usize, from: usize, len: usize) -> &'a [E] {
        let (page, at) = (block / self.group, block % self.group);
        let start = page * self.page_bytes + at * self.part_bytes + from * size_of::<E>();
        let bytes = &self.bytes[start..start + len * size_of::<E>()];
        // SAFETY: every bit pattern is a valid plain number; the assertion checks that the middle covers
        // everything.
        let (before, elements, after) = unsafe { bytes.align_to::<E>() };
        assert!(before.is_empty() && after.is_empty(), "parts are aligned as their elements are");
        elements
    }
}

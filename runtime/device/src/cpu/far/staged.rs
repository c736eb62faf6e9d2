//! What a disk filled, as lanes read it.

use super::super::memory::Plain;

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

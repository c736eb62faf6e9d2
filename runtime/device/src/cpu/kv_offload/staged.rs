//! Staged blocks, as read by lanes.

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

    /// `len` bytes from byte `from` of a block's part; `block` is an index in the window.
    #[inline(always)]
    pub fn bytes(&self, block: usize, from: usize, len: usize) -> &'a [u8] {
        let (page, at) = (block / self.group, block % self.group);
        let start = page * self.page_bytes + at * self.part_bytes + from;
        &self.bytes[start..start + len]
    }
}

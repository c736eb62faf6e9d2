//! The backends: what transfers one page.

use crate::page::PageMemory;
use std::io;

/// A transfer of a page.
#[derive(Debug)]
pub(crate) struct Transfer<M> {
    pub kind: Kind,
    pub place: PageSlot,
    /// The caller's tag.
    pub tag: u64,
    pub page: M,
    /// The checksum expected of a read.
    pub sum: u64,
}

impl<M: PageMemory> Transfer<M> {
    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        u64::from(self.place.0) * self.page.len() as u64
    }
}

/// Transfers pages, several at a time or one after another.
pub(crate) trait Backend<M>: Send + 'static {
    /// Begins a transfer.
    fn begin(&mut self, transfer: Transfer<M>);

    /// Transfers begun and not returned.
    fn in_flight(&self) -> usize;

    /// Returns completed transfers in any order; waits for at least one if any is in flight.
    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>);
}

/// A page's place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageSlot(pub(crate) u32);

impl PageSlot {
    /// Its number, below the number of places.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From memory to its place.
    Write,
    /// From its place to memory.
    Read,
}

//! The file effects: what moves one page.

use crate::page::PageMemory;
use crate::store::{Kind, Place};
use std::io;

/// A page on its way.
#[derive(Debug)]
pub(crate) struct Transfer<M> {
    pub kind: Kind,
    pub place: Place,
    /// The caller's word for it.
    pub tag: u64,
    pub page: M,
    /// The checksum that is expected of what is read.
    pub sum: u64,
}

impl<M: PageMemory> Transfer<M> {
    /// Where in the file it begins.
    pub fn offset(&self) -> u64 {
        u64::from(self.place.0) * self.page.len() as u64
    }
}

/// Something that moves pages, several at a time or one after another.
pub(crate) trait Backend<M>: Send + 'static {
    /// Begins a transfer.
    fn begin(&mut self, transfer: Transfer<M>);

    /// How many were begun and not given back.
    fn in_flight(&self) -> usize;

    /// Gives back those that are done, in any order, at least one where one is in flight; waits for it.
    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>);
}

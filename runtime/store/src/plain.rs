//! Plain reads and writes, one after another, for systems that forbid io_uring.

use crate::backend::{Backend, Kind, Transfer};
use crate::page::PageMemory;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The file, and completed transfers not yet returned.
#[derive(Debug)]
pub(crate) struct Plain<M> {
    file: File,
    done: Vec<(Transfer<M>, io::Result<()>)>,
}

impl<M> Plain<M> {
    pub fn new(file: File) -> Plain<M> {
        Plain { file, done: Vec::new() }
    }
}

impl<M: PageMemory> Backend<M> for Plain<M> {
    fn begin(&mut self, mut transfer: Transfer<M>) {
        let offset = transfer.offset();
        let result = match transfer.kind {
            Kind::Write => self.file.write_all_at(transfer.page.bytes(), offset),
            Kind::Read => self.file.read_exact_at(transfer.page.bytes_mut(), offset),
        };
        self.done.push((transfer, result));
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>) {
        done.append(&mut self.done);
    }
}

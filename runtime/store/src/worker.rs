//! The store's thread: takes transfers, runs as many at a time as it may, and returns them.

use crate::backend::{Backend, Kind, Transfer};
use crate::error::PageError;
use crate::page::PageMemory;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError};
use twox_hash::XxHash3_64;

/// The checksum of a page: with 64 bits no error of a lifetime is overlooked.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A message from the thread. `sum` is the checksum of a written page.
pub(crate) type Done<M> = (Transfer<M>, Result<(), PageError>);

pub(crate) struct Worker<M, B> {
    pub backend: B,
    /// Most transfers at a time.
    pub depth: usize,
    pub inbox: Receiver<Transfer<M>>,
    pub outbox: Sender<Done<M>>,
    /// Set when the store was dropped.
    pub closing: Arc<AtomicBool>,
}

impl<M: PageMemory, B: Backend<M>> Worker<M, B> {
    /// Works until the store is dropped.
    pub fn run(mut self) {
        let mut done = Vec::new();
        while let Ok(next) = self.next() {
            match next {
                Some(transfer) => self.begin(transfer),
                None => {
                    self.backend.finish(&mut done);
                    for (transfer, result) in done.drain(..) {
                        // The receiver may be gone.
                        let _ = self.outbox.send(finished(transfer, result));
                    }
                }
            }
        }
    }

    /// The next page to move; `None` while something has to be finished first.
    fn next(&self) -> Result<Option<Transfer<M>>, RecvError> {
        let in_flight = self.backend.in_flight();
        if self.closing.load(Ordering::Relaxed) {
            return if in_flight == 0 { Err(RecvError) } else { Ok(None) };
        }
        if in_flight == 0 {
            return self.inbox.recv().map(Some);
        }
        if in_flight == self.depth {
            return Ok(None);
        }
        match self.inbox.try_recv() {
            Ok(transfer) => Ok(Some(transfer)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Ok(None),
        }
    }

    fn begin(&mut self, mut transfer: Transfer<M>) {
        if transfer.kind == Kind::Write {
            transfer.sum = checksum(transfer.page.bytes());
        }
        self.backend.begin(transfer);
    }
}

/// The result of a page's transfer.
fn finished<M: PageMemory>(transfer: Transfer<M>, result: io::Result<()>) -> Done<M> {
    let result = match (transfer.kind, result) {
        (_, Err(error)) => Err(PageError::Io(error)),
        (Kind::Write, Ok(())) => Ok(()),
        (Kind::Read, Ok(())) if checksum(transfer.page.bytes()) == transfer.sum => Ok(()),
        (Kind::Read, Ok(())) => Err(PageError::Corrupt),
    };
    (transfer, result)
}

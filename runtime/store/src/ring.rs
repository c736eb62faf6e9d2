//! io_uring: several transfers at a time, with two system calls for all of them.

use crate::backend::{Backend, Kind, Transfer};
use crate::page::PageMemory;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Retries of an interrupted transfer.
const ATTEMPTS: u32 = 8;
/// The errors of an interrupted transfer.
const AGAIN: [i32; 2] = [Errno::INTR.raw_os_error(), Errno::AGAIN.raw_os_error()];

/// The ring, and the transfers that the kernel may be working on.
pub(crate) struct Ring<M: PageMemory> {
    ring: IoUring,
    file: File,
    /// Transfers by the number that the system knows them by, with how often each was begun.
    slots: Vec<Option<(Transfer<M>, u32)>>,
    vacant: Vec<usize>,
    in_flight: usize,
}

impl<M: PageMemory> Ring<M> {
    /// A ring for `depth` transfers at a time.
    ///
    /// # Errors
    /// When the system has no io_uring, an old one, or forbids it.
    pub fn new(file: File, depth: u32) -> io::Result<Ring<M>> {
        let ring = IoUring::new(depth)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE)) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(Ring { ring, file, slots: Vec::new(), vacant: Vec::new(), in_flight: 0 })
    }

    /// Hands the transfer of a slot to the system, with the next call.
    fn push(&mut self, slot: usize) {
        let Some((transfer, _)) = &self.slots[slot] else { return };
        let entry = entry(&self.file, transfer).user_data(slot as u64);
        // SAFETY: the file is open and the memory alive for as long as the slot is occupied, which is until
        // the system says that it is done; nothing else touches the memory meanwhile.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Only with more transfers at a time than the ring was made for.
            self.call(0);
        }
    }

    /// Tells the system what was pushed, and waits until so many are done.
    fn call(&self, wait: usize) {
        if let Err(error) = self.ring.submit_and_wait(wait)
            && error.kind() != io::ErrorKind::Interrupted
        {
            // It is short of a resource. The kernel may still hold the memory, so the call is repeated.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take(&mut self, slot: usize) -> Option<Transfer<M>> {
        let (transfer, _) = self.slots.get_mut(slot)?.take()?;
        self.vacant.push(slot);
        self.in_flight -= 1;
        Some(transfer)
    }

    /// Collects completions, each with its result.
    fn reap(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>) {
        let completed: Vec<(usize, i32)> =
            self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
        for (slot, result) in completed {
            if AGAIN.contains(&-result)
                && let Some((_, attempts)) = &mut self.slots[slot]
                && *attempts < ATTEMPTS
            {
                *attempts += 1;
                self.push(slot);
                continue;
            }
            if let Some(transfer) = self.take(slot) {
                let result = outcome(&transfer, result);
                done.push((transfer, result));
            }
        }
    }
}

fn entry<M: PageMemory>(file: &File, transfer: &Transfer<M>) -> squeue::Entry {
    let (file, start) = (types::Fd(file.as_raw_fd()), transfer.page.start().as_ptr());
    // Pages are at most 1 GiB.
    let len = transfer.page.len() as u32;
    match transfer.kind {
        Kind::Read => opcode::Read::new(file, start, len).offset(transfer.offset()).build(),
        Kind::Write => opcode::Write::new(file, start, len).offset(transfer.offset()).build(),
    }
}

/// What a result of the system means: an error's number, or the bytes moved.
fn outcome<M: PageMemory>(transfer: &Transfer<M>, result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    if result as usize == transfer.page.len() {
        return Ok(());
    }
    let (kind, verb) = match transfer.kind {
        Kind::Read => (io::ErrorKind::UnexpectedEof, "read"),
        Kind::Write => (io::ErrorKind::WriteZero, "written"),
    };
    Err(io::Error::new(kind, format!("{result} of {} bytes were {verb}", transfer.page.len())))
}

impl<M: PageMemory> Backend<M> for Ring<M> {
    fn begin(&mut self, transfer: Transfer<M>) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some((transfer, 1));
        self.in_flight += 1;
        self.push(slot);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>) {
        let before = done.len();
        while self.in_flight > 0 && done.len() == before {
            self.call(1);
            self.reap(done);
        }
    }
}

impl<M: PageMemory> Drop for Ring<M> {
    fn drop(&mut self) {
        // Memory that the system may write to is not given back before it says that it is done.
        while self.in_flight > 0 {
            self.finish(&mut Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PageSlot;
    use crate::page::{ALIGN, Page};

    #[test]
    fn only_a_whole_page_is_a_page() {
        let transfer =
            |kind| Transfer { kind, place: PageSlot(0), tag: 0, page: Page::zeroed(ALIGN), sum: 0 };
        for kind in [Kind::Read, Kind::Write] {
            assert!(outcome(&transfer(kind), ALIGN as i32).is_ok());
            for result in [0, 512, ALIGN as i32 - 1, -5] {
                assert!(outcome(&transfer(kind), result).is_err(), "{result}");
            }
        }
        assert_eq!(outcome(&transfer(Kind::Write), -28).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_ring_for_few_takes_many() {
        let file = tempfile::tempfile().unwrap();
        let mut ring = Ring::new(file, 2).unwrap();
        for place in 0..64 {
            ring.begin(Transfer {
                kind: Kind::Write,
                place: PageSlot(place),
                tag: 0,
                page: Page::zeroed(ALIGN),
                sum: 0,
            });
        }
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.finish(&mut done);
        }
        assert!(done.len() == 64 && done.iter().all(|(_, result)| result.is_ok()));
    }
}

//! io_uring: several transfers at a time, with two system calls for all of them.

use crate::backend::{Backend, Kind, Transfer};
use crate::page::PageMemory;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// Retries of an interrupted transfer.
const ATTEMPTS: u32 = 8;
/// The errors of an interrupted transfer.
const AGAIN: [i32; 2] = [Errno::INTR.raw_os_error(), Errno::AGAIN.raw_os_error()];

/// A transfer that the kernel may be working on.
///
/// # Safety
/// File and memory of the entry belong to the value: open and alive, in the same place wherever the value is
/// moved, and touched by nobody until the ring has returned it.
pub(crate) unsafe trait Job {
    /// What the system is told.
    fn entry(&self) -> squeue::Entry;
}

/// The ring, and what the kernel may be working on.
pub(crate) struct Ring<J: Job> {
    ring: IoUring,
    /// Jobs by the number that the system knows them by, with how often each was begun.
    slots: Vec<Option<(J, u32)>>,
    vacant: Vec<usize>,
    in_flight: usize,
}

impl<J: Job> Ring<J> {
    /// A ring for `depth` jobs at a time.
    ///
    /// # Errors
    /// When the system has no io_uring, an old one, or forbids it.
    pub fn new(depth: u32) -> io::Result<Ring<J>> {
        let ring = IoUring::new(depth)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE)) {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(Ring { ring, slots: Vec::new(), vacant: Vec::new(), in_flight: 0 })
    }

    /// Begins a job, with the next call.
    pub fn begin(&mut self, job: J) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some((job, 1));
        self.in_flight += 1;
        self.push(slot);
    }

    /// Jobs begun and not returned.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Tells the system at once what was begun, without waiting for any of it.
    pub fn submit(&self) {
        self.call(0);
    }

    /// Returns what is done, each with its result: an error's number below zero, or the bytes moved. Waits
    /// for at least one if any is in flight.
    pub fn finish(&mut self, done: &mut Vec<(J, i32)>) {
        let before = done.len();
        while self.in_flight > 0 && done.len() == before {
            self.call(1);
            self.reap(done);
        }
    }

    /// Hands the job of a slot to the system, with the next call.
    fn push(&mut self, slot: usize) {
        let Some((job, _)) = &self.slots[slot] else { return };
        let entry = job.entry().user_data(slot as u64);
        // SAFETY: the job's promise holds for as long as the slot is occupied, which is until the system says
        // that it is done; nothing else touches the memory meanwhile.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Only with more jobs at a time than the ring was made for.
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

    fn take(&mut self, slot: usize) -> Option<J> {
        let (job, _) = self.slots.get_mut(slot)?.take()?;
        self.vacant.push(slot);
        self.in_flight -= 1;
        Some(job)
    }

    /// Collects completions, each with its result.
    fn reap(&mut self, done: &mut Vec<(J, i32)>) {
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
            if let Some(job) = self.take(slot) {
                done.push((job, result));
            }
        }
    }
}

impl<J: Job> Drop for Ring<J> {
    fn drop(&mut self) {
        // Memory that the system may write to is not given back before it says that it is done.
        while self.in_flight > 0 {
            self.finish(&mut Vec::new());
        }
    }
}

/// A ring that moves the pages of a file.
pub(crate) struct Pages<M: PageMemory> {
    ring: Ring<PageJob<M>>,
    file: Arc<File>,
    done: Vec<(PageJob<M>, i32)>,
}

/// A page on its way, and the file that it is of.
struct PageJob<M> {
    transfer: Transfer<M>,
    file: Arc<File>,
}

impl<M: PageMemory> Pages<M> {
    /// For `depth` transfers at a time.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn new(file: File, depth: u32) -> io::Result<Pages<M>> {
        Ok(Pages { ring: Ring::new(depth)?, file: Arc::new(file), done: Vec::new() })
    }
}

// SAFETY: the job owns the page's memory, whose place is the same wherever it is moved, and a share of the
// file.
unsafe impl<M: PageMemory> Job for PageJob<M> {
    fn entry(&self) -> squeue::Entry {
        let PageJob { transfer, file } = self;
        let (file, start) = (types::Fd(file.as_raw_fd()), transfer.page.start().as_ptr());
        // Pages are at most 1 GiB.
        let len = transfer.page.len() as u32;
        match transfer.kind {
            Kind::Read => opcode::Read::new(file, start, len).offset(transfer.offset()).build(),
            Kind::Write => opcode::Write::new(file, start, len).offset(transfer.offset()).build(),
        }
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

impl<M: PageMemory> Backend<M> for Pages<M> {
    fn begin(&mut self, transfer: Transfer<M>) {
        let file = Arc::clone(&self.file);
        self.ring.begin(PageJob { transfer, file });
    }

    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>) {
        self.ring.finish(&mut self.done);
        done.extend(self.done.drain(..).map(|(PageJob { transfer, .. }, result)| {
            let result = outcome(&transfer, result);
            (transfer, result)
        }));
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
        let mut ring = Pages::new(file, 2).unwrap();
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

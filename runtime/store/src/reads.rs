//! Reads of any part of any file, several at a time: how weights are loaded.

use crate::page::{Page, PageMemory};
use crate::ring::{Job, Ring};
use io_uring::{opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A read of a part of a file.
#[derive(Debug)]
pub struct Read {
    /// The file; with direct I/O, `at` and the page's bytes must be multiples of what its device asks for.
    pub file: Arc<File>,
    /// The first byte of the file.
    pub at: u64,
    /// Where the bytes go, from its beginning on.
    pub page: Page,
    /// How many bytes: the whole page at most.
    pub len: usize,
    /// The caller's tag.
    pub tag: u64,
}

/// Reads that a system makes several at a time.
pub trait Reads: Send {
    /// Begins a read.
    fn begin(&mut self, read: Read);

    /// Reads begun and not returned.
    fn in_flight(&self) -> usize;

    /// Returns completed reads in any order, each with the bytes that were read, which may be fewer than
    /// asked for; waits for at least one if any is in flight.
    fn finish(&mut self, done: &mut Vec<(Read, io::Result<usize>)>);
}

// SAFETY: the read owns a share of its file, and its page, whose memory stays in its place wherever the read
// is moved; no more than the page's bytes are asked for.
unsafe impl Job for Read {
    fn entry(&self) -> squeue::Entry {
        // Pages are at most 1 GiB.
        let len = self.len.min(self.page.len()) as u32;
        opcode::Read::new(types::Fd(self.file.as_raw_fd()), self.page.start().as_ptr(), len)
            .offset(self.at)
            .build()
    }
}

/// Reads through io_uring. Dropped, it waits until the system writes to none of its pages.
pub struct RingReads {
    ring: Ring<Read>,
    done: Vec<(Read, i32)>,
}

impl RingReads {
    /// For `depth` reads at a time.
    ///
    /// # Errors
    /// When the system has no io_uring, an old one, or forbids it.
    pub fn new(depth: u32) -> io::Result<RingReads> {
        Ok(RingReads { ring: Ring::new(depth)?, done: Vec::new() })
    }
}

impl std::fmt::Debug for RingReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingReads({} in flight)", self.ring.in_flight())
    }
}

impl Reads for RingReads {
    fn begin(&mut self, read: Read) {
        self.ring.begin(read);
        // It is to run while the caller works on others, and not only when the caller waits.
        self.ring.submit();
    }

    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    fn finish(&mut self, done: &mut Vec<(Read, io::Result<usize>)>) {
        self.ring.finish(&mut self.done);
        done.extend(self.done.drain(..).map(|(read, result)| {
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            (read, result)
        }));
    }
}

/// Whether the system's cache holds all of the pages of `len` bytes of a file from `at` on, so that reading
/// them through it touches no disk.
///
/// # Errors
/// When the system does not say: before Linux 6.5, and of files of others that this process may not write.
pub fn is_cached(file: &File, at: u64, len: u64) -> io::Result<bool> {
    let first = at / PAGE;
    let pages = (at + len).div_ceil(PAGE) - first;
    Ok(residency::cached_pages(file, first * PAGE, pages * PAGE)? >= pages)
}

/// Bytes of a page of the system's cache, at least. Where they are larger, as on some aarch64, a range counts
/// as not cached, and is read from the disk.
const PAGE: u64 = 4096;

#[cfg(target_os = "linux")]
mod residency {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    /// The number of `cachestat`, on all architectures.
    const CACHESTAT: libc::c_long = 451;

    /// How many pages of a range are in the cache.
    pub(super) fn cached_pages(file: &File, at: u64, len: u64) -> io::Result<u64> {
        let range = [at, len];
        // Pages that are cached, dirty, under writeback, evicted, and evicted recently.
        let mut found = [0u64; 5];
        // SAFETY: both structures are valid for the call and laid out as the system has them: two and five
        // numbers of 64 bits.
        let result =
            unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
        if result == 0 { Ok(found[0]) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(not(target_os = "linux"))]
mod residency {
    use std::fs::File;
    use std::io;

    pub(super) fn cached_pages(_: &File, _: u64, _: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// To be caught: the offset left out of the entry.
    #[test]
    fn reads_come_from_where_they_were_asked_for_and_say_where_a_file_ends() {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..40_000).map(|at| (at / 7 % 251) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        let file = Arc::new(file);
        let mut ring = RingReads::new(2).unwrap();
        // More at a time than the ring was made for.
        for tag in 0..10 {
            let (page, file) = (Page::zeroed(8192), Arc::clone(&file));
            ring.begin(Read { file, at: 4096 * tag, len: page.len(), page, tag });
        }
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            ring.finish(&mut done);
        }
        assert_eq!(done.len(), 10);
        for (read, result) in done {
            let at = read.at as usize;
            let wanted = &content[at..content.len().min(at + 8192)];
            assert_eq!(result.unwrap(), wanted.len());
            assert_eq!(&read.page.bytes()[..wanted.len()], wanted);
        }
    }

    /// To be caught: counting a page too few.
    #[test]
    fn what_was_just_written_is_cached_and_what_is_not_there_is_not() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 10_000], 0).unwrap();
        // Where the system does not say, nothing is to be known.
        let Ok(cached) = is_cached(&file, 0, 10_000) else { return };
        assert!(cached && is_cached(&file, 4095, 2).unwrap());
        assert!(!is_cached(&file, 0, 1 << 20).unwrap() && !is_cached(&file, 8192, 4097).unwrap());
    }
}

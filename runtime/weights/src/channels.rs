//! How files of weights are read: directly, past the system's cache, or through it; and how much was.

use crate::WeightsError;
use crate::pace::Pace;
use crate::pieces::{BLOCK, LIVE, PIECE};
use monomorph_store::{Page, Read, Reads, RingReads, is_cached};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of a thread, of [`PIECE`] bytes each: those wanted at a time, and as many ahead of them.
pub(crate) const BUFFERS: usize = 2 * LIVE;

/// Bytes of memory that a thread takes to read weights, whichever way it does.
pub const READING_BYTES: usize = BUFFERS * PIECE as usize;

/// What was read of the files of a checkpoint, and how. In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsRead {
    /// Past the system's cache, several pieces at a time.
    pub direct: u64,
    /// Through the cache, of which the system said that it had them.
    pub cached: u64,
    /// Through the cache otherwise: small tensors, and all where there is a reason for it.
    pub plain: u64,
    /// Why they are not all read directly; `None` where they are.
    pub why_plain: Option<String>,
}

impl WeightsRead {
    /// Bytes read in any way.
    pub fn bytes(&self) -> u64 {
        self.direct + self.cached + self.plain
    }
}

/// Counts of bytes read, shared by the files of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) direct: AtomicU64,
    pub(crate) cached: AtomicU64,
    pub(crate) plain: AtomicU64,
    why_plain: Mutex<Option<String>>,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64, bytes: usize) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// From now on files are read through the cache, for this reason. The first reason stands.
    pub(crate) fn fall_back(&self, why: String) {
        self.why_plain.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    pub(crate) fn reading(&self) -> WeightsRead {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WeightsRead {
            direct: count(&self.direct),
            cached: count(&self.cached),
            plain: count(&self.plain),
            why_plain: self.why_plain.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Makes what a thread reads with.
type Make = dyn Fn() -> io::Result<Box<dyn Reads>> + Send + Sync;

/// What threads read directly with, kept for those that come after them: making a ring and its buffers takes
/// as long as reading megabytes.
pub(crate) struct Channels {
    make: Box<Make>,
    idle: Mutex<Vec<Channel>>,
    /// How fast they are, beside the cache.
    pub(crate) pace: Pace,
}

/// What one thread reads with.
pub(crate) struct Channel {
    pub(crate) reads: Box<dyn Reads>,
    /// Buffers that nothing is read into.
    pub(crate) free: Vec<Page>,
}

impl Channels {
    /// Through io_uring.
    pub(crate) fn of_rings() -> Channels {
        Channels::with(|| Ok(Box::new(RingReads::new(BUFFERS as u32)?)))
    }

    pub(crate) fn with(make: impl Fn() -> io::Result<Box<dyn Reads>> + Send + Sync + 'static) -> Channels {
        Channels { make: Box::new(make), idle: Mutex::default(), pace: Pace::new() }
    }

    /// One that nobody reads with.
    ///
    /// # Errors
    /// When there is none, and the system makes no other.
    pub(crate) fn take(&self) -> io::Result<Channel> {
        if let Some(idle) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(idle);
        }
        let free = (0..BUFFERS).map(|_| Page::zeroed(PIECE as usize)).collect();
        Ok(Channel { reads: (self.make)()?, free })
    }

    /// Takes one back, of which nothing is in flight.
    pub(crate) fn put(&self, channel: Channel) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channels")
    }
}

/// A file, opened for direct reads.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    pub(crate) file: Arc<File>,
    pub(crate) channels: Arc<Channels>,
}

impl Direct {
    /// Opens a file that is open already as `cached`, and tries what direct reads of it need.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn open(path: &Path, cached: &File, channels: &Arc<Channels>) -> Result<Direct, String> {
        let at = path.display();
        is_cached(cached, 0, BLOCK)
            .map_err(|error| format!("the system does not say what it has cached of {at}: {error}"))?;
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = file.map_err(|error| format!("{at} cannot be opened for direct reads: {error}"))?;
        let known = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        if known(&file) != known(cached) {
            return Err(format!("{at} is another file by now"));
        }
        let file = Arc::new(file);
        let mut channel = channels.take().map_err(|error| format!("there is no io_uring: {error}"))?;
        let page = channel.free.pop().expect("a channel that is idle has buffers");
        let len = BLOCK as usize;
        channel.reads.begin(Read { file: Arc::clone(&file), at: 0, page, len, tag: 0 });
        let mut done = Vec::new();
        channel.reads.finish(&mut done);
        let mut outcome = Ok(0);
        for (read, result) in done {
            channel.free.push(read.page);
            outcome = result;
        }
        channels.put(channel);
        outcome.map_err(|error| format!("{at} cannot be read directly: {error}"))?;
        Ok(Direct { file, channels: Arc::clone(channels) })
    }
}

/// An error of reading a part of a file, with the part.
pub(crate) fn failed_at(path: &Path, at: u64, len: usize, error: io::Error) -> WeightsError {
    let end = at.saturating_add(len as u64);
    WeightsError::io(path, io::Error::new(error.kind(), format!("bytes {at} to {end}: {error}")))
}

//! Errors of a store.

use std::io;
use std::path::PathBuf;

/// Why a store could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The size of a page is not a multiple of [`ALIGN`](crate::ALIGN), or is 0 or above 1 GiB.
    PageSize {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The store would not hold a single page, or more than 2³² of them.
    Capacity {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of a page.
        page: usize,
    },
    /// The directory's disk has too little room.
    Space {
        /// Directory of the store's file.
        directory: PathBuf,
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// A file that outlives its store is not to be used.
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, behind its name in a sentence.
        why: String,
    },
    /// A system call failed.
    Io {
        /// What was attempted.
        what: &'static str,
        /// Directory of the store's file.
        directory: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::PageSize { bytes } => {
                write!(
                    f,
                    "pages of {bytes} bytes: a page is a multiple of {} bytes, 1 GiB at most",
                    crate::ALIGN
                )
            }
            OpenError::Capacity { bytes, page } => {
                write!(
                    f,
                    "{bytes} bytes of disk: at least one page of {page} bytes is needed, and at most 2^32"
                )
            }
            OpenError::Space { directory, needed, available } => {
                write!(
                    f,
                    "{} has room for {available} bytes, and {needed} were asked for",
                    directory.display()
                )
            }
            OpenError::Refused { path, why } => write!(f, "{} {why}", path.display()),
            OpenError::Io { what, directory, error } => {
                write!(f, "{what} in {} failed: {error}", directory.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a page was not written or read.
#[derive(Debug)]
pub enum PageError {
    /// The store is full.
    Full,
    /// The system or the device failed, or transferred less than the page.
    Io(io::Error),
    /// The bytes read are not those written.
    Corrupt,
    /// The store's thread has ended.
    Stopped,
    /// A mistake of the caller: the place was never written, is being written, or was freed; or the memory is
    /// not of a page's size.
    Misused(&'static str),
}

impl std::fmt::Display for PageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageError::Full => f.write_str("the file is full"),
            PageError::Io(error) => error.fmt(f),
            PageError::Corrupt => f.write_str("a page came back with other bytes than were written"),
            PageError::Stopped => f.write_str("the thread that reads and writes is gone"),
            PageError::Misused(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for PageError {}

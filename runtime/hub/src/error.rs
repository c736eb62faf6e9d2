//! What can go wrong, each in one sentence that says what would be right.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why files cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No file was asked for.
    Nothing {
        /// The repository.
        id: String,
    },
    /// A name that no repository, revision, file, commit or etag may have.
    Name {
        /// What it would name.
        what: &'static str,
        /// What was asked for.
        name: String,
    },
    /// The repository is there for those who asked its owners.
    Gated {
        /// The repository.
        id: String,
        /// The page on which to ask.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// There is no such repository, or none that this token may see.
    NoRepository {
        /// The repository.
        id: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The repository has no such branch, tag or commit.
    NoRevision {
        /// The repository.
        id: String,
        /// The branch, tag or commit that was asked for.
        revision: String,
    },
    /// The revision has no such file.
    NoFile {
        /// The repository.
        id: String,
        /// The address that was asked.
        url: String,
    },
    /// The hub knows neither the token nor, without one, who asks; or it knows and refuses.
    Refused {
        /// The address that was asked.
        url: String,
        /// What the hub says.
        why: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// An answer that a hub does not give.
    Answer {
        /// The address that was asked.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Every attempt failed.
    Unreachable {
        /// The address that was asked.
        url: String,
        /// How often it was asked in a row.
        attempts: u32,
        /// Why the last attempt failed.
        why: String,
    },
    /// The hub asks to wait for longer than the limits allow.
    Busy {
        /// The address that was asked.
        url: String,
        /// How long to wait.
        wait: Duration,
    },
    /// The content of a file is not what the hub or a spec says.
    Content {
        /// The file and its repository.
        name: String,
        /// What it has and should have.
        why: String,
    },
    /// The disk has too little room.
    Room {
        /// Directory of the cache.
        directory: PathBuf,
        /// Bytes that are still to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file or directory of the cache cannot be read or written.
    Disk {
        /// Where the cache is.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The hub may not be asked.
    Offline {
        /// The repository.
        id: String,
        /// Directory of the cache.
        cache: PathBuf,
    },
}

impl Error {
    /// Of a path and what the system says of it.
    pub(crate) fn disk(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
        |error| Error::Disk { path: path.to_owned(), why: error.to_string() }
    }

    /// Of an address and what is wrong with its answer.
    pub(crate) fn answer(url: &str, why: impl Into<String>) -> Error {
        Error::Answer { url: url.to_owned(), why: why.into() }
    }
}

/// How a token is given.
const GIVE: &str = "HF_TOKEN, or the file token of HF_HOME";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Nothing { id } => write!(f, "no files of {id} are named"),
            Error::Name { what, name } => {
                write!(f, "{name:?} is no {what} that is safe to keep in a cache")
            }
            Error::Gated { id, page, token: false } => write!(
                f,
                "{id} is gated: ask for access at {page}, and give the token of that account in {GIVE}"
            ),
            Error::Gated { id, page, token: true } => {
                write!(f, "{id} is gated, and the account of this token has no access: ask for it at {page}")
            }
            Error::NoRepository { id, endpoint, token: false } => write!(
                f,
                "{endpoint} has no model {id} that anyone may read: check the name, or give a token in {GIVE} if it is private"
            ),
            Error::NoRepository { id, endpoint, token: true } => {
                write!(
                    f,
                    "{endpoint} has no model {id} that this token may read: check the name and the token"
                )
            }
            Error::NoRevision { id, revision } => {
                write!(f, "{id} has no revision {revision:?}: name a branch, a tag or a commit of it")
            }
            Error::NoFile { id, url } => write!(f, "{id} has no such file: {url}"),
            Error::Refused { url, why, token: false } => {
                write!(f, "{url} was refused ({why}): give a token in {GIVE}")
            }
            Error::Refused { url, why, token: true } => {
                write!(f, "{url} was refused ({why}): the token has to be valid and may read this repository")
            }
            Error::Answer { url, why } => write!(f, "{url}: {why}"),
            Error::Unreachable { url, attempts, why } => {
                write!(f, "{url} failed {attempts} times in a row, the last time because {why}")
            }
            Error::Busy { url, wait } => {
                write!(f, "{url}: the hub asks to come back in {} s", wait.as_secs())
            }
            Error::Content { name, why } => write!(f, "{name} {why}"),
            Error::Room { directory, needed, free } => write!(
                f,
                "{} has {} free and {} are to come: make room, or let HF_HUB_CACHE name another disk",
                directory.display(),
                Bytes(*free),
                Bytes(*needed)
            ),
            Error::Disk { path, why } => write!(f, "{}: {why}", path.display()),
            Error::Offline { id, cache } => {
                write!(
                    f,
                    "{} lacks files of {id}, and HF_HUB_OFFLINE forbids asking the hub",
                    cache.display()
                )
            }
        }
    }
}

impl std::error::Error for Error {}

/// A number of bytes, for people.
pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} kB", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", self.0 as f64 / 1e6),
            _ => write!(f, "{:.1} GB", self.0 as f64 / 1e9),
        }
    }
}

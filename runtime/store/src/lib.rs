//! Pages of memory in a file, in a directory that the user names: bounded, checksummed, written and read
//! asynchronously.
//!
//! A [`DiskStore`] is for data that can be computed again and must never come back wrong. Its file has no
//! name while it is in use, so that the system removes it however the process ends; all of its room is
//! claimed when it is opened. A page comes back with its own bits or with an error: its checksum stays in
//! memory.
//!
//! A [`KeptStore`] is one whose pages outlive it: its files have names and one owner at a time, and an index
//! says which page is what, with its checksum.
//!
//! [`Reads`] are for files of others: reads of any part of them, several at a time, into memory for direct
//! I/O.
//!
//! One thread of the store moves pages, through io_uring where the system allows it and with plain reads and
//! writes where not. The caller submits pages and polls for completions; only [`DiskStore::wait`] blocks.

mod backend;
mod error;
mod file;
mod kept;
mod measure;
mod open;
mod page;
mod plain;
mod reads;
mod ring;
mod store;
mod worker;

#[cfg(feature = "test-support")]
mod faults;

pub use backend::{Kind, PageSlot};
pub use error::{OpenError, PageError};
#[cfg(feature = "test-support")]
pub use faults::{Fault, Faults};
pub use kept::{Identity, KeptEntry, KeptOptions, KeptStore};
pub use measure::{copy_mapped, drop_cached};
pub use open::Options;
pub use page::{ALIGN, Page, PageMemory, whole_page};
pub use reads::{Read, Reads, RingReads, is_cached};
pub use store::{Completion, DiskStore, Refused};

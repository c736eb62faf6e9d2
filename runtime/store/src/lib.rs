//! Pages of memory in a file of a directory that the user names: bounded, checksummed, written and read while
//! others work.
//!
//! A [`DiskStore`] is for what can be computed again and must never come back wrong. Its file has no name
//! while it is used, so that the system takes it back however the process ends; all of its room is claimed
//! when it is opened. A page comes back with the bits it was given or with an error, never otherwise: its
//! checksum stays in memory.
//!
//! One thread of the store moves pages, through io_uring where the system allows it and with plain reads and
//! writes where not. Whoever uses the store hands pages over and asks later what became of them; nothing but
//! [`DiskStore::wait`] blocks.

mod backend;
mod error;
mod file;
mod open;
mod page;
mod plain;
mod ring;
mod store;
mod worker;

#[cfg(feature = "test-support")]
mod faults;

pub use error::{OpenError, PageError};
#[cfg(feature = "test-support")]
pub use faults::{Fault, Faults};
pub use page::{ALIGN, Page, PageMemory, whole_page};
pub use store::{Completion, DiskStore, Kind, Options, Place, Refused};

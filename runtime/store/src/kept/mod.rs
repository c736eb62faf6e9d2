//! Pages that outlive the process: two files in a directory, one of pages and one that says what they are.
//!
//! A page is written, and then its entry; before its place is used again the entry is cleared. So an entry
//! never comes before its page, however the process ends. Nothing is synced: what a machine that loses power
//! has not written is found by the checksums.

mod layout;

pub use layout::{Identity, KeptEntry};

use crate::backend::PageSlot;
use crate::error::OpenError;
use crate::file::{Named, open_private};
use crate::open::Options;
use crate::page::{Page, PageMemory};
use crate::store::{Completion, DiskStore, Refused};
use layout::{HEADER_BYTES, Layout};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const INDEX: &str = "kept-prefixes.index";
const PAGES: &str = "kept-prefixes.pages";
/// How long the files of a process that has just ended may still be locked: the system ends its transfers.
const LOCKED: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// Options of a store of kept pages.
#[derive(Clone, Debug)]
pub struct KeptOptions {
    /// Bytes of a page: a multiple of [`ALIGN`](crate::ALIGN).
    pub page_bytes: usize,
    /// Most words of a page's key.
    pub key_words: usize,
    /// Most bytes of both files, claimed at once.
    pub capacity_bytes: u64,
    /// Most transfers at a time; at least 1.
    pub depth: u32,
    /// What the pages depend on.
    pub identity: Identity,
}

impl KeptOptions {
    fn layout(&self) -> Layout {
        Layout { page_bytes: self.page_bytes, key_words: self.key_words }
    }

    /// Bytes of the index in front of its entries.
    pub const HEADER: u64 = HEADER_BYTES as u64;

    /// Bytes of an entry whose key has so many words.
    pub const fn entry_bytes(key_words: usize) -> usize {
        Layout { page_bytes: 0, key_words }.entry_bytes()
    }

    /// Pages that there is room for.
    pub fn slots(&self) -> usize {
        self.layout().slots(self.capacity_bytes) as usize
    }
}

/// Pages in a file, and the index of them. The files belong to one store at a time.
#[derive(Debug)]
pub struct KeptStore<M: PageMemory = Page> {
    disk: DiskStore<M>,
    /// Locked while it is open.
    index: File,
    header: Vec<u8>,
    layout: Layout,
}

impl<M: PageMemory> KeptStore<M> {
    /// Opens the files in a directory, or makes them; what may be trusted of the index, without a look at the
    /// pages. `report` receives a line where something is there that may not be, and what [`DiskStore::open`]
    /// has to say.
    ///
    /// # Errors
    /// As [`DiskStore::open`], when another process has the files, and when others may read them.
    pub fn open(
        directory: &Path,
        options: &KeptOptions,
        report: impl Fn(std::fmt::Arguments),
    ) -> Result<(KeptStore<M>, Vec<KeptEntry>), OpenError> {
        let (layout, slots) = (options.layout(), options.layout().slots(options.capacity_bytes));
        let (bytes, page) = (options.capacity_bytes, options.page_bytes);
        let too_small = OpenError::Capacity { bytes, page };
        let header = layout.header(&options.identity).filter(|_| slots > 0).ok_or(too_small)?;
        let index = lock(directory)?;
        let failed = |what| {
            let directory = directory.to_owned();
            move |error| OpenError::Io { what, directory, error }
        };
        let found = read_all(&index).map_err(failed("reading the index of kept prefixes"))?;
        let pages = directory.join(PAGES);
        let there = std::fs::metadata(&pages).map_or(0, |metadata| metadata.len());
        let mut entries = Vec::new();
        let refusal = layout.refusal(found.get(..HEADER_BYTES).unwrap_or(&found), &options.identity);
        let named = directory.display();
        if let Some(why) = refusal.as_ref().filter(|_| !found.is_empty()) {
            report(format_args!("kept prefixes in {named} are dropped: {why}"));
        }
        if refusal.is_some() {
            // Nothing before the header, and no entry of before behind it.
            let made = index.set_len(0).and_then(|()| index.write_all_at(&header, 0));
            made.map_err(failed("writing the index of kept prefixes"))?;
        } else {
            let (mut damaged, mut beyond) = (0, 0);
            for (slot, bytes) in found[HEADER_BYTES..].chunks(layout.entry_bytes()).enumerate() {
                let slot = slot as u32;
                match layout.read(&header, slot, bytes) {
                    Ok(None) => continue,
                    Err(()) => damaged += 1,
                    // The file of pages was cut, or is to be smaller.
                    Ok(Some(_)) if slot >= slots || (u64::from(slot) + 1) * page as u64 > there => {
                        beyond += 1
                    }
                    Ok(Some(entry)) => {
                        entries.push(entry);
                        continue;
                    }
                }
                clear(&index, &layout, slot).map_err(failed("writing the index of kept prefixes"))?;
            }
            if damaged > 0 {
                report(format_args!("kept prefixes in {named}: {damaged} entries are damaged, and not used"));
            }
            if beyond > 0 {
                report(format_args!(
                    "kept prefixes in {named}: {beyond} blocks are behind the end, and gone"
                ));
            }
        }
        index.set_len(layout.place(slots)).map_err(failed("sizing the index of kept prefixes"))?;
        let capacity_bytes = u64::from(slots) * page as u64;
        let sizes = Options { page_bytes: page, capacity_bytes, depth: options.depth };
        let held = entries.iter().map(|entry| (entry.slot, entry.sum));
        let disk = DiskStore::open_named(&Named { directory, path: &pages }, sizes, held, &report)?;
        Ok((KeptStore { disk, index, header, layout }, entries))
    }

    /// Pages it can hold.
    pub fn capacity(&self) -> usize {
        self.disk.capacity()
    }

    /// Places that the next pages can be written to.
    pub fn free_places(&self) -> usize {
        self.disk.free_places()
    }

    /// Transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.disk.in_flight()
    }

    /// Submits a page to be written to a free place; [`Self::record`] follows its completion.
    ///
    /// # Errors
    /// As [`DiskStore::write`].
    pub fn write(&mut self, page: M, tag: u64) -> Result<u32, Refused<M>> {
        self.disk.write(page, tag).map(PageSlot::number)
    }

    /// Writes down what a page is that has been written, with the checksum of its completion. From now on it
    /// is found after the process has ended.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub fn record(&self, entry: &KeptEntry) -> io::Result<()> {
        let bytes = self.layout.entry(&self.header, entry).ok_or(io::ErrorKind::InvalidInput)?;
        self.index.write_all_at(&bytes, self.layout.place(entry.slot))
    }

    /// Submits a page to be filled with what a place holds.
    ///
    /// # Errors
    /// As [`DiskStore::read`].
    pub fn read(&mut self, slot: u32, page: M, tag: u64) -> Result<(), Refused<M>> {
        self.disk.read(PageSlot(slot), page, tag)
    }

    /// Gives up what a place holds: its entry first, then the place, once its transfers are complete.
    ///
    /// # Errors
    /// When the index cannot be written. The place then stays taken.
    pub fn free(&mut self, slot: u32) -> io::Result<()> {
        clear(&self.index, &self.layout, slot)?;
        self.disk.free(PageSlot(slot));
        Ok(())
    }

    /// Gives up everything, so that no later process finds it.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub fn forget_all(&mut self) -> io::Result<()> {
        let slots = self.disk.capacity() as u32;
        self.index.set_len(HEADER_BYTES as u64)?;
        self.index.set_len(self.layout.place(slots))?;
        (0..slots).for_each(|slot| self.disk.free(PageSlot(slot)));
        Ok(())
    }

    /// As [`DiskStore::poll`].
    pub fn poll(&mut self) -> Option<Completion<M>> {
        self.disk.poll()
    }

    /// As [`DiskStore::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Option<Completion<M>> {
        self.disk.wait(timeout)
    }
}

impl KeptStore {
    /// Checks that a directory's files can be had, without a look at what is in them.
    ///
    /// # Errors
    /// When the directory is not there or not writable, another process has the files, or others may read
    /// them.
    pub fn check(directory: &Path) -> Result<(), OpenError> {
        lock(directory).map(drop)
    }
}

/// The index, locked for this process alone.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let path: PathBuf = directory.join(INDEX);
    let index = open_private(&path, OFlags::empty())?;
    let began = Instant::now();
    loop {
        let refused = |why: String| OpenError::Refused { path: path.clone(), why };
        match flock(&index, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(index),
            Err(Errno::WOULDBLOCK) if began.elapsed() < LOCKED => std::thread::sleep(LOOK),
            Err(Errno::WOULDBLOCK) => {
                return Err(refused("is another server's, which runs; each needs a directory".to_owned()));
            }
            Err(error) => return Err(refused(format!("cannot be locked: {error}"))),
        }
    }
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Clears an entry.
fn clear(index: &File, layout: &Layout, slot: u32) -> io::Result<()> {
    index.write_all_at(&vec![0; layout.entry_bytes()], layout.place(slot))
}

//! K/V offload: the part common to all devices.
//!
//! A block has a *part* for each attending layer. Parts are numbered in the order in which the layers attend.
//! Blocks are sent to disk in *groups* of consecutive ones; a page of the store holds one part of a group.
//! While a step runs, pages are read in the order of parts, a *window* of pages at a time, into one of a few
//! slots of a staging area in host memory, some windows ahead of the one in use. Reads thus overlap with the
//! layers' work.

mod prefetcher;
mod staging;

use monomorph_model::{LoadError, OffloadOptions, OffloadRoom};
use monomorph_store::{DiskStore, Options, whole_page};
pub(crate) use prefetcher::Prefetcher;
pub(crate) use staging::{Area, Staging};

/// Most blocks of a group: a sequence must exceed its share by that many before any are sent.
const MOST: usize = 32;
/// Windows staged or in transfer at a time: the one in use, and those read ahead of it.
pub(crate) const SLOTS: usize = 4;
/// Bytes of a window: large enough that waits are rare, small enough to stay in a core's cache until it is
/// used.
const WINDOW: usize = 2 << 20;

/// The division of blocks into pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of each part of a block.
    pub(crate) parts: Vec<usize>,
    /// Blocks per group.
    pub(crate) group: usize,
    /// Bytes per page.
    pub(crate) page_bytes: usize,
    /// Number of groups that fit on disk.
    pub(crate) places: usize,
    /// Pages per window.
    pub(crate) pages: usize,
}

impl Layout {
    /// The layout for `options`. Each entry of `parts` is the bytes of a part of a block, with the numbers of
    /// all parts of that size. A window holds every group that any `together` consecutive blocks touch.
    ///
    /// # Errors
    /// When there is no room for a group.
    pub(crate) fn new(
        options: &OffloadOptions,
        parts: &[(usize, &[usize])],
        together: usize,
    ) -> Result<Layout, LoadError> {
        let count = parts.iter().map(|(_, numbers)| numbers.len()).sum();
        let mut bytes = vec![0; count];
        for (each, numbers) in parts {
            numbers.iter().for_each(|number| bytes[*number] = *each);
        }
        let largest = bytes.iter().copied().max().unwrap_or(0).max(1);
        let group = (options.page_bytes / largest).clamp(1, MOST);
        let page_bytes = whole_page(group * largest);
        let least = together.div_ceil(group) + 1;
        // No more than the disk transfers at a time.
        let pages = (WINDOW / page_bytes).min(options.depth as usize);
        let pages = options.window_pages.unwrap_or(pages).max(least);
        let places = options.bytes / (page_bytes * count.max(1)) as u64;
        let places = u32::try_from(places).unwrap_or(u32::MAX) as usize;
        if places == 0 {
            let least = page_bytes * count;
            return Err(LoadError::Offload(format!(
                "{} bytes are less than a place's, {least}",
                options.bytes
            )));
        }
        Ok(Layout { parts: bytes, group, page_bytes, places, pages })
    }

    /// The places on disk, for the engine.
    pub(crate) fn room(&self) -> OffloadRoom {
        OffloadRoom { places: self.places, group: self.group }
    }

    /// The page of a part of the group at a place.
    pub(crate) fn page(&self, place: u32, part: usize) -> usize {
        place as usize * self.parts.len() + part
    }

    /// Bytes of a staging area: all slots, and one slot's worth of pages to write from.
    fn staged(&self) -> usize {
        (SLOTS + 1) * self.pages * self.page_bytes
    }

    /// Makes the file. Pages are staged in memory from `claim`, which receives the number of bytes.
    ///
    /// # Errors
    /// When the file cannot be made, or memory is short.
    pub(crate) fn open<M: Area>(
        &self,
        options: &OffloadOptions,
        report: fn(std::fmt::Arguments),
        claim: impl FnOnce(usize) -> Result<M, LoadError>,
    ) -> Result<(Prefetcher<M>, Staging<M>), LoadError> {
        let pages = self.places * self.parts.len();
        let store = Options {
            page_bytes: self.page_bytes,
            capacity_bytes: (pages * self.page_bytes) as u64,
            depth: options.depth,
        };
        let store = DiskStore::open(&options.directory, store, report);
        let store = store.map_err(|error| LoadError::Offload(error.to_string()))?;
        let staging = Staging::new(claim(self.staged())?, self.page_bytes);
        report(format_args!(
            "K/V blocks on disk: {} groups of {} blocks in pages of {} bytes, {}; staged in {} bytes",
            self.places,
            self.group,
            self.page_bytes,
            store.how(),
            self.staged()
        ));
        Ok((Prefetcher::new(store, staging.clone(), pages, self.pages), staging))
    }
}

//! K/V blocks on disk: what is alike for every device.
//!
//! A block's *parts* are what one attending layer keeps in it. Parts are numbered in the order in which
//! layers attend. Blocks are sent to disk in *groups* of consecutive ones; a page of the store holds one part
//! of a group. While a step runs, pages are read in the order of parts, a *window* of some at a time, into
//! one of a few slots of a staging area in the machine's memory, some windows ahead of the one that is used.
//! So reading goes on while layers compute.

mod desk;
mod staging;

pub(crate) use desk::Desk;
use monomorph_model::{LoadError, OffloadOptions, OffloadRoom};
use monomorph_store::{DiskStore, Options, whole_page};
pub(crate) use staging::{Area, Staging};

/// Most blocks of a group: what a sequence has to have beyond its share before any are sent.
const MOST: usize = 32;
/// Windows that are there or on their way at one time: the one that is used, and those read ahead of it.
pub(crate) const SLOTS: usize = 4;
/// Bytes of a window: large enough that whoever uses it is seldom disturbed, small enough to stay in a core's
/// cache until it is.
const WINDOW: usize = 2 << 20;

/// How blocks are cut into pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of each part of a block.
    pub(crate) parts: Vec<usize>,
    /// Blocks of a group.
    pub(crate) group: usize,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Groups that there is room for.
    pub(crate) places: usize,
    /// Pages of a window.
    pub(crate) pages: usize,
}

impl Layout {
    /// As `options` say, for blocks of these parts: each of `parts` is the bytes of one, and the numbers of
    /// all that have as many. A window holds all groups that any `together` consecutive blocks are of.
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
        // No more than a disk works on at a time.
        let pages = (WINDOW / page_bytes).min(options.depth as usize);
        let pages = options.window_pages.unwrap_or(pages).max(least);
        let places = options.bytes / (page_bytes * count.max(1)) as u64;
        let places = u32::try_from(places).unwrap_or(u32::MAX) as usize;
        if places == 0 {
            let least = page_bytes * count;
            return Err(LoadError::Far(format!("{} bytes are less than a place's, {least}", options.bytes)));
        }
        Ok(Layout { parts: bytes, group, page_bytes, places, pages })
    }

    /// What the engine is told of it.
    pub(crate) fn room(&self) -> OffloadRoom {
        OffloadRoom { places: self.places, group: self.group }
    }

    /// The page of a part of the group in a place.
    pub(crate) fn page(&self, place: u32, part: usize) -> usize {
        place as usize * self.parts.len() + part
    }

    /// Bytes of a staging area: all slots, and as much as one to write from.
    fn staged(&self) -> usize {
        (SLOTS + 1) * self.pages * self.page_bytes
    }

    /// Makes the file. Pages are staged in memory of which `claim` claims so many bytes.
    ///
    /// # Errors
    /// When there can be no such file, or memory is short.
    pub(crate) fn open<M: Area>(
        &self,
        options: &OffloadOptions,
        report: fn(std::fmt::Arguments),
        claim: impl FnOnce(usize) -> Result<M, LoadError>,
    ) -> Result<(Desk<M>, Staging<M>), LoadError> {
        let pages = self.places * self.parts.len();
        let store = Options {
            page_bytes: self.page_bytes,
            capacity_bytes: (pages * self.page_bytes) as u64,
            depth: options.depth,
        };
        let store = DiskStore::open(&options.directory, store, report);
        let store = store.map_err(|error| LoadError::Far(error.to_string()))?;
        let staging = Staging::new(claim(self.staged())?, self.page_bytes);
        report(format_args!(
            "K/V blocks on disk: {} groups of {} blocks in pages of {} bytes, {}; staged in {} bytes",
            self.places,
            self.group,
            self.page_bytes,
            store.how(),
            self.staged()
        ));
        Ok((Desk::new(store, staging.clone(), pages, self.pages), staging))
    }
}

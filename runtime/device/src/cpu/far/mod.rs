//! K/V blocks on disk, read while a step runs: bounded memory for any context that the disk holds.
//!
//! A block's *parts* are what one attending layer keeps in it. Parts are numbered in the order in which layers attend. Blocks are
//! sent to disk in *groups* of consecutive ones; a page of the store holds one part of a group. While a step runs, the first lane
//! has the store read the groups of one part after the other, a [`Window`](super::batch::Window) at a time, into one of a few slots
//! of a staging area, some windows ahead of the one that the lanes attend to. So reading goes on while layers compute, and what is
//! claimed does not depend on how long sequences are.
//!
//! A page that cannot be read is zeros, and the step goes on with those: its rows are [lost](RowOutput::Lost) at its end.

mod desk;
mod staging;

use super::attention::SEGMENT;
use super::batch::Batch;
use super::outputs::Outputs;
use super::team::Lane;
use desk::Desk;
use monomorph_model::{FarId, FarOptions, FarRoom, LoadError, RowOutput, Step};
use monomorph_store::{DiskStore, Options, whole_page};
pub(super) use staging::Staged;
use staging::Staging;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most blocks of a group: what a sequence has to have beyond its share before any are sent.
const MOST: usize = 32;
/// Windows that are there or on their way at one time: the one attended to, and those read ahead of it.
const SLOTS: usize = 4;
/// Bytes of a window: large enough that lanes seldom meet, small enough to stay in a core's cache until it is attended to.
const WINDOW: usize = 2 << 20;

/// Room on disk for blocks, and the way from there; of a server that keeps none there, neither.
#[derive(Debug)]
pub struct Far {
    stream: Option<Arc<Stream>>,
    /// Blocks that are not on disk.
    blocks: usize,
    group: usize,
    places: usize,
    window: usize,
}

/// What the store and the staging area are to lanes and caches.
#[derive(Debug)]
pub(super) struct Stream {
    desk: Mutex<Desk>,
    staging: Staging,
    /// Bytes of each part of a block.
    parts: Vec<usize>,
    page_bytes: usize,
    group: usize,
    /// Pages of a slot.
    pages: usize,
    /// The first part of the pass at hand, and windows of each of its parts; written while no lane runs.
    first: AtomicUsize,
    windows: AtomicUsize,
}

impl Far {
    /// Room as `options` say for blocks of these parts, of which the device holds `blocks`, of `block_tokens` tokens: each of
    /// `parts` is the bytes of one, and the numbers of all that have as many.
    ///
    /// # Errors
    /// When there can be no such file, or the address space is exhausted.
    pub fn open(
        options: Option<&FarOptions>,
        blocks: usize,
        block_tokens: usize,
        parts: &[(usize, &[usize])],
        report: fn(std::fmt::Arguments),
    ) -> Result<Far, LoadError> {
        let Some(options) = options else {
            return Ok(Far { stream: None, blocks, group: 1, places: 0, window: 0 });
        };
        let count = parts.iter().map(|(_, numbers)| numbers.len()).sum();
        let mut bytes = vec![0; count];
        for (each, numbers) in parts {
            numbers.iter().for_each(|number| bytes[*number] = *each);
        }
        let largest = bytes.iter().copied().max().unwrap_or(0).max(1);
        let group = (options.page_bytes / largest).clamp(1, MOST);
        let page_bytes = whole_page(group * largest);
        // A window holds all groups that a segment is of.
        let least = SEGMENT.div_ceil(block_tokens).div_ceil(group) + 1;
        let pages = options.window_pages.unwrap_or(WINDOW / page_bytes).max(least);
        let places = options.bytes / (page_bytes * count.max(1)) as u64;
        let places = u32::try_from(places).unwrap_or(u32::MAX) as usize;
        if places == 0 {
            let least = page_bytes * count;
            return Err(LoadError::Far(format!("{} bytes are less than a place's, {least}", options.bytes)));
        }
        let store = Options {
            page_bytes,
            capacity_bytes: (places * count * page_bytes) as u64,
            depth: options.depth,
        };
        let store = DiskStore::open(&options.directory, store, report);
        let store = store.map_err(|error| LoadError::Far(error.to_string()))?;
        let staging = Staging::new((SLOTS + 1) * pages, page_bytes).ok_or_else(|| LoadError::Memory {
            what: "the staging of K/V blocks on disk".to_owned(),
            needed: ((SLOTS + 1) * pages * page_bytes) as u64,
            available: 0,
            fits: None,
        })?;
        report(format_args!(
            "K/V blocks on disk: {places} groups of {group} blocks in pages of {page_bytes} bytes, {}; staged in {} bytes",
            store.how(),
            (SLOTS + 1) * pages * page_bytes
        ));
        let stream = Stream {
            desk: Mutex::new(Desk::new(store, staging.clone(), places * count, pages)),
            staging,
            parts: bytes,
            page_bytes,
            group,
            pages,
            first: AtomicUsize::new(0),
            windows: AtomicUsize::new(0),
        };
        Ok(Far { stream: Some(Arc::new(stream)), blocks, group, places, window: pages * group })
    }

    /// Groups of blocks that there is room for on disk, if any.
    pub fn room(&self) -> Option<FarRoom> {
        (self.places > 0).then_some(FarRoom { places: self.places, group: self.group })
    }

    /// Blocks of a group.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Blocks that are staged at one time; 0 of a server that keeps none on disk.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.clone()
    }

    /// Begins a pass over `parts` of what the step has on disk: reading starts, and the lanes are to attend to each of these parts
    /// in order.
    pub fn begin(&self, step: &Step, batch: &Batch, parts: Range<usize>) {
        let (Some(stream), windows @ [_, ..]) = (&self.stream, batch.windows()) else { return };
        stream.first.store(parts.start, Relaxed);
        stream.windows.store(windows.len(), Relaxed);
        let count = stream.parts.len();
        let pages = parts.flat_map(|part| windows.iter().map(move |window| (part, &window.far)));
        let pages = pages.map(|(part, far)| {
            let groups = &step.far[far.start / stream.group..far.end / stream.group];
            groups.iter().map(move |place| place.0 as usize * count + part)
        });
        stream.desk().begin(pages);
    }

    /// Behind what was sampled: the rows that have blocks on disk are lost if some could not be read.
    pub fn end<const DRAFTS: usize>(&self, step: &Step, outputs: &mut Outputs<DRAFTS>) {
        let Some(why) = self.stream.as_ref().and_then(|stream| stream.desk().take_failure()) else { return };
        for (row, sequence) in outputs.rows.iter_mut().zip(&step.sequences) {
            if sequence.blocks.iter().any(|block| block.0 as usize >= self.blocks) {
                *row = RowOutput::Lost(why.clone());
            }
        }
    }
}

impl Stream {
    /// What a panic of another thread left is still whole.
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks of a group.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Writes parts `numbers` of a group to a place: `copy(i, block, bytes)` copies part `numbers[i]` of a block of the group.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub(super) fn send(
        &self,
        to: FarId,
        numbers: &[usize],
        mut copy: impl FnMut(usize, usize, &mut [u8]),
    ) -> Result<(), String> {
        let pages = numbers.iter().map(|part| to.0 as usize * self.parts.len() + part);
        self.desk().write(pages, |at, bytes| {
            let each = self.parts[numbers[at]];
            for (block, bytes) in bytes.chunks_exact_mut(each).take(self.group).enumerate() {
                copy(at, block, bytes);
            }
        })
    }

    /// Window `window` of a part: the first lane waits for it, the others for that one.
    pub(super) fn wait(&self, lane: &Lane, part: usize, window: usize) -> Staged<'_> {
        let at = (part - self.first.load(Relaxed)) * self.windows.load(Relaxed) + window;
        if lane.index() == 0 {
            self.desk().wait(at);
        }
        lane.barrier();
        let first = at % SLOTS * self.pages;
        // SAFETY: it is there, so that none of its pages is lent, and it is released behind a barrier only.
        let bytes = unsafe { self.staging.pages(first, self.pages) };
        Staged { bytes, page_bytes: self.page_bytes, group: self.group, part_bytes: self.parts[part] }
    }

    /// Says, behind a barrier, that all lanes are done with the window that they waited for last.
    pub(super) fn release(&self, lane: &Lane) {
        if lane.index() == 0 {
            self.desk().release();
        }
    }
}

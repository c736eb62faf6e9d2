//! K/V blocks on disk, read while a step runs: bounded memory for any context that the disk holds.
//!
//! How blocks are cut into pages, and how these are read ahead, stands in [`crate::far`]. The first lane has
//! the store read [`Window`](super::batch::Window)s, some ahead of the one that the lanes attend to. What is
//! claimed does not depend on how long sequences are.
//!
//! A page that cannot be read is zeros, and the step goes on with those: its rows are [lost](RowOutput::Lost)
//! at its end.

mod staged;

use super::attention::SEGMENT;
use super::batch::Batch;
use super::memory::Memory;
use super::outputs::Outputs;
use super::team::Lane;
use crate::far::{Desk, Layout, SLOTS, Staging};
use monomorph_model::{LoadError, OffloadOptions, OffloadRoom, OffloadSlot, RowOutput, Step};
pub(super) use staged::Staged;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room on disk for blocks, and the way from there; of a server that keeps none there, neither.
#[derive(Debug)]
pub struct Far {
    stream: Option<Arc<Stream>>,
    /// Blocks that are not on disk.
    blocks: usize,
}

/// What the store and the staging area are to lanes and caches.
#[derive(Debug)]
pub(super) struct Stream {
    desk: Mutex<Desk<Memory<u8>>>,
    staging: Staging<Memory<u8>>,
    layout: Layout,
    /// The first part of the pass at hand, and windows of each of its parts; written while no lane runs.
    first: AtomicUsize,
    windows: AtomicUsize,
}

impl Far {
    /// Room as `options` say for blocks of these parts, of which the device holds `blocks`, of `block_tokens`
    /// tokens: each of `parts` is the bytes of one, and the numbers of all that have as many.
    ///
    /// # Errors
    /// When there can be no such file, or the address space is exhausted.
    pub fn open(
        options: Option<&OffloadOptions>,
        blocks: usize,
        block_tokens: usize,
        parts: &[(usize, &[usize])],
        report: fn(std::fmt::Arguments),
    ) -> Result<Far, LoadError> {
        let Some(options) = options else {
            return Ok(Far { stream: None, blocks });
        };
        // A window holds all blocks of a segment.
        let layout = Layout::new(options, parts, SEGMENT.div_ceil(block_tokens))?;
        let short = |bytes: usize| LoadError::Memory {
            what: "the staging of K/V blocks on disk".to_owned(),
            needed: bytes as u64,
            available: 0,
            fits: None,
        };
        let claim = |bytes| Memory::try_zeroed(bytes).ok_or_else(|| short(bytes));
        let (desk, staging) = layout.open(options, report, claim)?;
        let stream = Stream {
            desk: Mutex::new(desk),
            staging,
            layout,
            first: AtomicUsize::new(0),
            windows: AtomicUsize::new(0),
        };
        Ok(Far { stream: Some(Arc::new(stream)), blocks })
    }

    /// Groups of blocks that there is room for on disk, if any.
    pub fn room(&self) -> Option<OffloadRoom> {
        self.stream.as_ref().map(|stream| stream.layout.room())
    }

    /// Blocks of a group.
    pub(super) fn group(&self) -> usize {
        self.stream.as_ref().map_or(1, |stream| stream.group())
    }

    /// Blocks that are staged at one time; 0 of a server that keeps none on disk.
    pub(super) fn window(&self) -> usize {
        self.stream.as_ref().map_or(0, |stream| stream.layout.pages * stream.group())
    }

    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.clone()
    }

    /// Begins a pass over `parts` of what the step has on disk: reading starts, and the lanes are to attend
    /// to each of these parts in order.
    pub fn begin(&self, step: &Step, batch: &Batch, parts: Range<usize>) {
        let (Some(stream), windows @ [_, ..]) = (&self.stream, batch.windows()) else { return };
        stream.first.store(parts.start, Relaxed);
        stream.windows.store(windows.len(), Relaxed);
        let (layout, group) = (&stream.layout, stream.group());
        let pages = parts.flat_map(|part| windows.iter().map(move |window| (part, &window.far)));
        let pages = pages.map(|(part, far)| {
            let groups = &step.far[far.start / group..far.end / group];
            groups.iter().map(move |place| layout.page(place.0, part))
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
    fn desk(&self) -> MutexGuard<'_, Desk<Memory<u8>>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks of a group.
    pub(super) fn group(&self) -> usize {
        self.layout.group
    }

    /// Writes parts `numbers` of a group to a place: `copy(i, block, bytes)` copies part `numbers[i]` of a
    /// block of the group.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub(super) fn send(
        &self,
        to: OffloadSlot,
        numbers: &[usize],
        mut copy: impl FnMut(usize, usize, &mut [u8]),
    ) -> Result<(), String> {
        let pages = numbers.iter().map(|part| self.layout.page(to.0, *part));
        self.desk().write(pages, |at, bytes| {
            let each = self.layout.parts[numbers[at]];
            for (block, bytes) in bytes.chunks_exact_mut(each).take(self.group()).enumerate() {
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
        let Layout { parts, group, page_bytes, pages, .. } = &self.layout;
        // SAFETY: it is there, so that none of its pages is lent, and it is released behind a barrier only.
        let bytes = unsafe { self.staging.pages(at % SLOTS * pages, *pages) };
        Staged { bytes, page_bytes: *page_bytes, group: *group, part_bytes: parts[part] }
    }

    /// Says, behind a barrier, that all lanes are done with the window that they waited for last.
    pub(super) fn release(&self, lane: &Lane) {
        if lane.index() == 0 {
            self.desk().release();
        }
    }
}

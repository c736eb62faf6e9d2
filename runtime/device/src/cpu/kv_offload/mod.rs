//! K/V offload: blocks on disk are read while a step runs, so that memory stays bounded for any context that
//! the disk holds.
//!
//! [`crate::kv_offload`] cuts blocks into pages and prefetches them. The first lane has the store read
//! [`Window`](super::windows::Window)s some way ahead of the one that the lanes attend to. The memory claimed
//! does not depend on the lengths of sequences.
//!
//! A page that cannot be read becomes zeros, and the step continues with these; its rows are
//! [lost](RowOutput::Lost) at the end.

mod staged;

use super::batch::Batch;
use super::memory::Memory;
use super::outputs::Outputs;
use super::shape::SEGMENT;
use super::team::Lane;
use crate::kv_offload::{Layout, Prefetcher, SLOTS, Staging};
use monomorph_model::{LoadError, OffloadOptions, OffloadRoom, OffloadSlot, RowOutput, Step};
pub(super) use staged::Staged;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// K/V offload of a server; empty if it keeps no blocks on disk.
#[derive(Debug)]
pub struct KvOffload {
    stream: Option<Arc<Stream>>,
    /// Number of blocks in memory.
    blocks: usize,
}

/// The prefetcher and the staging area, shared by lanes and caches.
#[derive(Debug)]
pub(super) struct Stream {
    prefetcher: Mutex<Prefetcher<Memory<u8>>>,
    staging: Staging<Memory<u8>>,
    layout: Layout,
    /// The first part of the current pass, and the windows per part; written while no lane runs.
    first: AtomicUsize,
    windows: AtomicUsize,
}

impl KvOffload {
    /// Opens the offload that `options` describe, beside `blocks` blocks of `block_tokens` tokens in memory.
    /// Each entry of `parts` is the bytes of a part of a block, with the numbers of all parts of that size.
    ///
    /// # Errors
    /// When the file cannot be made, or the address space is exhausted.
    pub fn open(
        options: Option<&OffloadOptions>,
        blocks: usize,
        block_tokens: usize,
        parts: &[(usize, &[usize])],
        report: fn(std::fmt::Arguments),
    ) -> Result<KvOffload, LoadError> {
        let Some(options) = options else {
            return Ok(KvOffload { stream: None, blocks });
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
        let (prefetcher, staging) = layout.open(options, report, claim)?;
        let stream = Stream {
            prefetcher: Mutex::new(prefetcher),
            staging,
            layout,
            first: AtomicUsize::new(0),
            windows: AtomicUsize::new(0),
        };
        Ok(KvOffload { stream: Some(Arc::new(stream)), blocks })
    }

    /// The room for groups of blocks on disk, if any.
    pub fn room(&self) -> Option<OffloadRoom> {
        self.stream.as_ref().map(|stream| stream.layout.room())
    }

    /// Blocks per group.
    pub(super) fn group(&self) -> usize {
        self.stream.as_ref().map_or(1, |stream| stream.group())
    }

    /// Blocks staged at a time; 0 if none are kept on disk.
    pub(super) fn window(&self) -> usize {
        self.stream.as_ref().map_or(0, |stream| stream.layout.pages * stream.group())
    }

    pub(super) fn stream(&self) -> Option<Arc<Stream>> {
        self.stream.clone()
    }

    /// Begins a pass over `parts` of the step's blocks on disk: starts reading. The lanes then attend to each
    /// of these parts in order.
    pub fn begin(&self, step: &Step, batch: &Batch, parts: Range<usize>) {
        let (Some(stream), windows @ [_, ..]) = (&self.stream, batch.windows()) else { return };
        stream.first.store(parts.start, Relaxed);
        stream.windows.store(windows.len(), Relaxed);
        let (layout, group) = (&stream.layout, stream.group());
        let pages = parts.flat_map(|part| windows.iter().map(move |window| (part, &window.offloaded)));
        let pages = pages.map(|(part, offloaded)| {
            let groups = &step.offloaded[offloaded.start / group..offloaded.end / group];
            groups.iter().map(move |place| layout.page(place.0, part))
        });
        stream.prefetcher().begin(pages);
    }

    /// Called after sampling: rows with blocks on disk are lost if some could not be read.
    pub fn end<const DRAFTS: usize>(&self, step: &Step, outputs: &mut Outputs<DRAFTS>) {
        let Some(why) = self.stream.as_ref().and_then(|stream| stream.prefetcher().take_failure()) else {
            return;
        };
        for (row, sequence) in outputs.rows.iter_mut().zip(&step.sequences) {
            if sequence.blocks.iter().any(|block| block.0 as usize >= self.blocks) {
                *row = RowOutput::Lost(why.clone());
            }
        }
    }
}

impl Batch {
    /// The batch, for steps with blocks on disk if `offload` has any.
    #[must_use]
    pub fn streamed(mut self, offload: &KvOffload) -> Batch {
        (self.window, self.group) = (offload.window(), offload.group());
        self
    }
}

impl Stream {
    /// Ignores poisoning: a panic of another thread leaves the data intact.
    fn prefetcher(&self) -> MutexGuard<'_, Prefetcher<Memory<u8>>> {
        self.prefetcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks per group.
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
        self.prefetcher().write(pages, |at, bytes| {
            let each = self.layout.parts[numbers[at]];
            for (block, bytes) in bytes.chunks_exact_mut(each).take(self.group()).enumerate() {
                copy(at, block, bytes);
            }
        })
    }

    /// Window `window` of a part. The first lane waits for the disk, the others for the first lane.
    pub(super) fn wait(&self, lane: &Lane, part: usize, window: usize) -> Staged<'_> {
        let at = (part - self.first.load(Relaxed)) * self.windows.load(Relaxed) + window;
        if lane.index() == 0 {
            self.prefetcher().wait(at);
        }
        lane.barrier();
        let Layout { parts, group, page_bytes, pages, .. } = &self.layout;
        // SAFETY: the window has been read, so none of its pages is lent, and it is released only after a
        // barrier.
        let bytes = unsafe { self.staging.pages(at % SLOTS * pages, *pages) };
        Staged { bytes, page_bytes: *page_bytes, group: *group, part_bytes: parts[part] }
    }

    /// Releases the window last waited for. Called after a barrier that all lanes reach when they are done
    /// with it.
    pub(super) fn release(&self, lane: &Lane) {
        if lane.index() == 0 {
            self.prefetcher().release();
        }
    }
}

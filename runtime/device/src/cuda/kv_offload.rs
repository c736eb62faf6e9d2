//! K/V offload: blocks on disk, staged on the device layer by layer while a step runs.
//!
//! [`crate::kv_offload`] cuts blocks into pages and prefetches them. Kernels find a block of a layer at the
//! layer's address plus its id times the block size, for any id. So the blocks that a layer attends to are
//! copied to a staging area after all layers' blocks, reached by ids that are large enough. These ids differ
//! from layer to layer, so the block table is rewritten before each layer that attends. The kernels contain
//! nothing of this, and steps without blocks on disk do not pay for it.
//!
//! The area has two halves. Each has room for one layer's part of every group that can be on disk. While a
//! layer attends to one half, the other is filled for the next layer. The thread that launches the layers
//! also copies pages to the device from the store's memory, which is pinned. It runs one layer ahead of the
//! device and no more.

use super::driver::{Event, Stream};
use super::fault::Fault;
use super::host::Pinned;
use super::pointer::Pointer;
use crate::kv_offload::{Area, Layout, Prefetcher, SLOTS, Staging};
use monomorph_model::{BlockId, LoadError, OffloadOptions, OffloadRoom, OffloadSlot};
use std::ptr::NonNull;

// SAFETY: allocated once, initialised, owned by the value and freed with it.
unsafe impl Area for Pinned {
    fn start(&self) -> NonNull<u8> {
        Pinned::start(self)
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }
}

/// A layer's blocks: the address of the first, and the bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) start: Pointer,
    pub(super) bytes: u64,
}

/// Bytes of a staging area, which has two halves.
pub(super) fn area_bytes(layout: &Layout) -> u64 {
    2 * half_bytes(layout)
}

/// Bytes of one half. A layer's ids address multiples of its block size from its own first block, so its
/// first id in a half points up to a block behind the half's first byte.
fn half_bytes(layout: &Layout) -> u64 {
    let largest = layout.parts.iter().max().copied().unwrap_or(0) as u64;
    (layout.places as u64 * layout.group as u64 + 1) * largest
}

/// The id of the first block in each half of the area at `area`, counted from the layer's own first block.
fn first_ids(blocks: Blocks, area: Pointer, half_bytes: u64) -> Result<[i32; 2], Fault> {
    let id = |half: u64| {
        let bytes = area.0 + half * half_bytes - blocks.start.0;
        let id = bytes.div_ceil(blocks.bytes.max(1));
        // The ids that follow must fit, too.
        let last = id + half_bytes / blocks.bytes.max(1);
        i32::try_from(last).map_err(|_| {
            Fault::new(format!("the offload area is {bytes} bytes away, beyond the range of block ids"))
        })?;
        Ok(id as i32)
    };
    Ok([id(0)?, id(1)?])
}

/// The groups on disk that a block table names, each once, in its order. A group has `group` blocks; ids from
/// `blocks` on are on disk.
fn named(table: &[i32], blocks: i32, group: usize) -> Vec<usize> {
    let mut named = Vec::new();
    for id in table.iter().filter(|id| **id >= blocks) {
        let at = (id - blocks) as usize / group;
        if named.last() != Some(&at) {
            named.push(at);
        }
    }
    named
}

/// The block table for a layer whose staged blocks begin at id `first`.
fn seen(table: &[i32], blocks: i32, first: i32) -> impl Iterator<Item = i32> {
    table.iter().map(move |id| if *id < blocks { *id } else { first + (id - blocks) })
}

/// The file, and the pinned memory that its pages pass through.
#[derive(Debug)]
pub(super) struct Disk {
    prefetcher: Prefetcher<Pinned>,
    staging: Staging<Pinned>,
    layout: Layout,
}

impl Disk {
    /// Makes the file.
    ///
    /// # Errors
    /// When the file cannot be made, or pinned memory is short.
    pub(super) fn open(
        options: &OffloadOptions,
        layout: Layout,
        report: fn(std::fmt::Arguments),
    ) -> Result<Disk, LoadError> {
        let (prefetcher, staging) = layout.open(options, report, |bytes| Ok(Pinned::zeroed(bytes)?))?;
        Ok(Disk { prefetcher, staging, layout })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Half of the staging area.
#[derive(Debug)]
struct Half {
    /// Recorded when the half is filled.
    filled: Event,
    /// Recorded when no kernel reads the half any more.
    read: Event,
    /// The block table for the layer that the half is filled for.
    table: Pinned,
}

/// Blocks on disk, and their transfer to the device.
#[derive(Debug)]
pub(crate) struct KvOffload {
    disk: Disk,
    copies: Stream,
    /// For each slot, recorded when its pages have been copied to the device.
    copied: [Event; SLOTS],
    halves: [Half; 2],
    /// The half to fill next.
    turn: usize,
    /// The blocks of each part, and the id of its first staged block in each half.
    parts: Vec<(Blocks, [i32; 2])>,
    /// Number of blocks on the device.
    blocks: i32,
}

impl KvOffload {
    /// For a device with the given blocks in each part, and an area of [`area_bytes`] after all of them. No
    /// step's block table has more than `table` bytes.
    ///
    /// # Errors
    /// When the device has no more streams or events, or is too large for block ids, or pinned memory is
    /// short.
    pub(super) fn new(
        disk: Disk,
        parts: &[Blocks],
        area: Pointer,
        blocks: usize,
        table: usize,
    ) -> Result<KvOffload, Fault> {
        let half_bytes = half_bytes(&disk.layout);
        let staged = (disk.layout.places * disk.layout.group) as u64;
        let place = |part: &Blocks| -> Result<_, Fault> {
            let first = first_ids(*part, area, half_bytes)?;
            for (half, first) in (0..2).zip(first) {
                let begin = area.0 + half * half_bytes;
                let [from, to] = part.start.offset(first as u64 * part.bytes).range(staged * part.bytes);
                assert!(begin <= from.0 && to.0 <= begin + half_bytes, "what is staged lies in its half");
            }
            Ok((*part, first))
        };
        // All of it now: locking memory waits for the device, which may be waiting for another rank.
        let half = || Ok(Half { filled: Event::new()?, read: Event::new()?, table: Pinned::zeroed(table)? });
        Ok(KvOffload {
            copies: Stream::new()?,
            copied: [Event::new()?, Event::new()?, Event::new()?, Event::new()?],
            halves: [half()?, half()?],
            turn: 0,
            parts: parts.iter().map(place).collect::<Result<_, Fault>>()?,
            blocks: blocks as i32,
            disk,
        })
    }

    /// The places on disk.
    pub(super) fn room(&self) -> OffloadRoom {
        self.disk.layout.room()
    }

    /// Number of blocks that the places hold.
    pub(super) fn blocks(&self) -> usize {
        self.disk.layout.places * self.disk.layout.group
    }

    /// Writes a group of blocks to a place on disk, after the work already in `stream`.
    ///
    /// # Errors
    /// The outer one when the device has failed, the inner one when the disk is full or fails.
    pub(super) fn send(
        &mut self,
        stream: &Stream,
        blocks: &[BlockId],
        to: OffloadSlot,
    ) -> Result<Result<(), String>, Fault> {
        let KvOffload { disk: Disk { prefetcher, layout, .. }, parts, .. } = self;
        assert!(
            blocks.len() == layout.group && blocks.iter().all(|block| (block.0 as i32) < self.blocks),
            "{blocks:?} are no group of the device's blocks"
        );
        let mut outcome = Ok(());
        let pages = (0..parts.len()).map(|part| layout.page(to.0, part));
        let written = prefetcher.write(pages, |part, page| {
            let Blocks { start, bytes } = parts[part].0;
            let fetched =
                blocks.iter().zip(page.chunks_exact_mut(bytes as usize)).try_for_each(|(block, to)| {
                    // SAFETY: the block lies in the arena, and the pinned page is not read before the wait
                    // below.
                    unsafe { stream.download(start.offset(u64::from(block.0) * bytes).0, to) }
                });
            let fetched = fetched.and_then(|()| stream.wait());
            outcome = std::mem::replace(&mut outcome, Ok(())).and(fetched);
        });
        outcome.map(|()| written)
    }

    /// Starts reading the groups of the step that a block table names; does nothing if it names none. `to` is
    /// the address of the device's block table.
    pub(super) fn begin<'a>(
        &'a mut self,
        step: &[OffloadSlot],
        table: &'a [i32],
        to: Pointer,
    ) -> Option<Pass<'a>> {
        let layout = &self.disk.layout;
        let named = named(table, self.blocks, layout.group);
        if named.is_empty() {
            return None;
        }
        let windows = (0..self.parts.len()).flat_map(|part| {
            let page = move |at: &usize| layout.page(step[*at].0, part);
            named.chunks(layout.pages).map(move |window| window.iter().map(page))
        });
        self.disk.prefetcher.begin(windows);
        Some(Pass { offload: self, named, table, to, window: 0, half: None })
    }

    /// Why blocks could not be read in the passes since the last call, if any failed.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.disk.prefetcher.take_failure()
    }
}

/// A step's pass over its layers, staging blocks from disk.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    offload: &'a mut KvOffload,
    /// The groups that the step names.
    named: Vec<usize>,
    table: &'a [i32],
    to: Pointer,
    /// The next window, counted over all parts.
    window: usize,
    /// The half that the layers launched last attend to.
    half: Option<usize>,
}

impl Pass<'_> {
    /// Copies the next part to the device. Work given to `stream` after this finds it there.
    ///
    /// # Errors
    /// When the device has failed.
    pub(super) fn stage(&mut self, stream: &Stream, part: usize) -> Result<(), Fault> {
        self.leave(stream)?;
        let KvOffload {
            disk: Disk { prefetcher, staging, layout },
            copies,
            copied,
            halves,
            turn,
            parts,
            blocks,
        } = &mut *self.offload;
        let (Blocks { start, bytes }, first) = parts[part];
        let (at, first) = (*turn, first[*turn]);
        let half = &mut halves[at];
        *turn = 1 - at;
        half.read.wait()?;
        for groups in self.named.chunks(layout.pages) {
            prefetcher.wait(self.window);
            let slot = self.window % SLOTS;
            for (page, group) in groups.iter().enumerate() {
                // SAFETY: the window has been read, so none of its pages is lent.
                let page = unsafe { staging.pages(slot * layout.pages + page, 1) };
                let to = start.offset((first as u64 + (group * layout.group) as u64) * bytes);
                // SAFETY: the range lies within the half, which has a place for every group of a step and
                // which no kernel reads; the page is lent again only after the copy.
                unsafe { copies.upload(to.0, &page[..layout.group * bytes as usize]) }?;
            }
            copied[slot].record(copies)?;
            self.window += 1;
            if self.window > 1 {
                copied[(self.window - 2) % SLOTS].wait()?;
                prefetcher.release();
            }
        }
        half.filled.record(copies)?;
        stream.wait_for(&half.filled)?;
        let table = &mut half.table.bytes_mut()[..size_of_val(self.table)];
        for (bytes, id) in table.chunks_exact_mut(4).zip(seen(self.table, *blocks, first)) {
            bytes.copy_from_slice(&id.to_ne_bytes());
        }
        // SAFETY: the destination is the step's own block table, allocated for the largest step; the pinned
        // table is not rewritten before the half is free.
        unsafe { stream.upload(self.to.0, table) }?;
        self.half = Some(at);
        Ok(())
    }

    /// Marks the work launched so far as the last to read its half.
    fn leave(&mut self, stream: &Stream) -> Result<(), Fault> {
        match self.half.take() {
            Some(half) => self.offload.halves[half].read.record(stream),
            None => Ok(()),
        }
    }

    /// Ends the pass, after the last layer.
    ///
    /// # Errors
    /// When the device has failed.
    pub(super) fn finish(mut self, stream: &Stream) -> Result<(), Fault> {
        self.leave(stream)?;
        self.offload.copied[(self.window - 1) % SLOTS].wait()?;
        self.offload.disk.prefetcher.release();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(parts: &[usize], group: usize, places: usize) -> Layout {
        Layout { parts: parts.to_vec(), group, page_bytes: 4096, places, pages: 2 }
    }

    #[test]
    fn every_staged_block_of_every_layer_lies_in_its_half() {
        // Layers of two kinds, with odd sizes, back to back; the gap between them and the area varies.
        for (sizes, own, gap) in [([48, 80, 48], 5, 0), ([5376, 5376, 100], 7, 13), ([16, 16, 16], 1, 256)] {
            let (layout, mut at) = (layout(&sizes, 3, 4), 1024);
            let mut parts = Vec::new();
            for bytes in sizes {
                parts.push(Blocks { start: Pointer(at), bytes: bytes as u64 });
                at += own * bytes as u64 + gap;
            }
            let (area, half) = (Pointer(at), half_bytes(&layout));
            for part in parts {
                for (number, first) in first_ids(part, area, half).expect("small").into_iter().enumerate() {
                    assert!(first >= own as i32, "{part:?}: {first} is a block of the device");
                    let begin = part.start.0 + first as u64 * part.bytes;
                    let end = begin + 12 * part.bytes;
                    let from = area.0 + number as u64 * half;
                    assert!(from <= begin && end <= from + half, "{part:?}: {begin} to {end}, half {number}");
                }
            }
            assert_eq!(area_bytes(&layout), 2 * half);
        }
    }

    #[test]
    fn a_device_too_large_for_ids_is_refused() {
        let part = Blocks { start: Pointer(0), bytes: 16 };
        assert!(first_ids(part, Pointer(1 << 34), 1 << 20).is_ok());
        let error = first_ids(part, Pointer(1 << 35), 1 << 20).expect_err("2^31 ids").to_string();
        assert!(error.contains("beyond the range of block ids"), "{error}");
    }

    #[test]
    fn a_table_names_groups_in_its_order_and_each_once() {
        // Two sequences: groups 1 and 0 of a step, after 10 blocks of the device, then group 2.
        let table = [4, 12, 13, 10, 11, 5, 2, 14, 15, 3];
        assert_eq!(named(&table, 10, 2), [1, 0, 2]);
        assert_eq!(named(&table[5..7], 10, 2), Vec::<usize>::new());
        let seen: Vec<i32> = seen(&table, 10, 100).collect();
        assert_eq!(seen, [4, 102, 103, 100, 101, 5, 2, 104, 105, 3]);
    }
}

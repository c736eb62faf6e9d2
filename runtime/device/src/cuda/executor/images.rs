//! Images: the tower's step over some, and the pinned memory that their pixels pass through.

use super::super::driver::Event;
use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::wire::bytes_of;
use super::{Executor, Programs};
use crate::cuda::pointer::Pointer;
use crate::cuda::queue::{Extents, Kept};
use crate::cuda::world::fail;
use monomorph_abi::images::PatchGrids;
use monomorph_model::{Grid, Patches, Shown, Ticket, VisionSpec};
use std::ops::Range;

/// What a stack's tower is, and where it takes pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tower {
    pub(crate) vision: VisionSpec,
    /// Most patches of a side of an image.
    pub(crate) most_side: usize,
    /// `[patches, values]` on the device.
    pub(crate) pixels: Pointer,
}

/// Bytes of pixels that a thread copies, at least: several are asked for images of megabytes.
const BYTES_OF_THREAD: usize = 4 << 20;
/// Most threads that copy.
const MOST_THREADS: usize = 4;

/// The tower of a stack that has one.
#[derive(Debug)]
pub(super) struct Sight {
    tower: Tower,
    /// Alternating, so that a pass's pixels are copied while those before are still to be uploaded.
    staging: [Staging; 2],
    next: usize,
}

/// Pinned memory that a pass's pixels go through.
#[derive(Debug)]
struct Staging {
    /// Grown to the largest pass, or as large as any may be.
    pixels: Pinned,
    /// Recorded when the device has taken them.
    taken: Event,
}

impl Staging {
    fn new(bytes: usize) -> Result<Staging, Fault> {
        Ok(Staging { pixels: Pinned::zeroed(bytes)?, taken: Event::new()? })
    }

    /// Leaves the pixels of images in pinned memory, one after the other, once what was there before is
    /// taken.
    fn fill(&mut self, images: &[Shown]) -> Result<&[u8], Fault> {
        self.taken.wait()?;
        let parts: Vec<&[u8]> = images.iter().map(|image| bytes_of(image.patches.pixels)).collect();
        let all = parts.iter().map(|part| part.len()).sum::<usize>();
        if all > self.pixels.bytes().len() {
            self.pixels = Pinned::zeroed(all.next_power_of_two())?;
        }
        let to = &mut self.pixels.bytes_mut()[..all];
        copy(&parts, to, all.div_ceil(BYTES_OF_THREAD).clamp(1, MOST_THREADS));
        Ok(to)
    }
}

/// Copies parts, one after the other, on so many threads: one alone takes 3 ms for an image of 1024 x 1024.
fn copy(parts: &[&[u8]], to: &mut [u8], threads: usize) {
    let share = to.len().div_ceil(threads).max(1);
    let mut shares = (0..).step_by(share).zip(to.chunks_mut(share));
    let own = shares.next();
    std::thread::scope(|scope| {
        for (first, to) in shares {
            scope.spawn(move || copy_from(parts, first, to));
        }
        if let Some((first, to)) = own {
            copy_from(parts, first, to);
        }
    });
}

/// Copies what parts have from byte `first` of all on.
fn copy_from(parts: &[&[u8]], mut first: usize, mut to: &mut [u8]) {
    for part in parts {
        let from = &part[first.min(part.len())..];
        first = first.saturating_sub(part.len());
        let (now, rest) = to.split_at_mut(from.len().min(to.len()));
        now.copy_from_slice(&from[..now.len()]);
        to = rest;
    }
}

impl Tower {
    /// Checks an image, by whose numbers kernels index without further checks.
    ///
    /// # Panics
    /// When it has no patches, more than a pass takes or than a side may have, or other than whole merge
    /// blocks; there is not one row of pixels a patch, or no such slot.
    fn check(&self, Shown { patches: Patches { pixels, grid }, slot }: &Shown) {
        let Tower { vision, most_side, .. } = self;
        let Grid { frames, rows, columns } = *grid;
        let count = rows.checked_mul(columns).and_then(|frame| frame.checked_mul(frames));
        assert!(
            count.is_some_and(|count| vision.takes(1, count)) && rows.max(columns) <= *most_side,
            "an image of {frames} x {rows} x {columns} patches, and the limits are {} and {most_side} a side",
            vision.most_patches
        );
        assert!(
            rows.is_multiple_of(vision.merge) && columns.is_multiple_of(vision.merge),
            "{rows} x {columns} patches are no whole blocks of {} a side",
            vision.merge
        );
        let (given, values, count) = (pixels.len(), vision.values, grid.patches());
        assert!(given == count * values, "{given} numbers are not {values} a patch of {count}");
        assert!((slot.0 as usize) < vision.slots, "there is no {slot:?}");
    }

    /// Checks the images of a step over these layers, and says where their rows go. They have so many patches
    /// in all.
    ///
    /// # Panics
    /// When [`Self::check`] does, they are more than a pass takes, two have one slot, or there are no such
    /// layers.
    fn keep(&self, images: &[Shown], layers: &Range<usize>) -> (usize, Vec<Kept>) {
        let vision = &self.vision;
        let (mut patches, mut kept) = (0, Vec::<Kept>::with_capacity(images.len()));
        for image in images {
            self.check(image);
            let tokens = |patches: usize| patches / (vision.merge * vision.merge);
            let rows = tokens(patches)..tokens(patches + image.patches.grid.patches());
            patches += image.patches.grid.patches();
            let first = image.slot.0 as usize * (1 + vision.taps) * vision.most_tokens();
            assert!(kept.iter().all(|other| other.first != first), "two images for {:?}", image.slot);
            kept.push(Kept { rows, first });
        }
        let whole = images.len() == 1 || *layers == (0..vision.layers);
        assert!(
            whole && vision.takes(images.len(), patches) && vision.has(layers),
            "layers {layers:?} over {} images of {patches} patches",
            images.len()
        );
        (patches, kept)
    }
}

impl Sight {
    /// Pinned memory is claimed with the first image, or here if there are further ranks: locking it waits
    /// for the device, which may be waiting for one of them.
    pub(super) fn new(tower: Tower, further_ranks: bool) -> Result<Sight, Fault> {
        let most = tower.vision.most_patches * tower.vision.values * size_of::<f32>();
        let bytes = if further_ranks { most } else { 0 };
        Ok(Sight { tower, staging: [Staging::new(bytes)?, Staging::new(bytes)?], next: 0 })
    }
}

impl Executor {
    /// So many bytes of f32 on the device.
    ///
    /// # Panics
    /// When the device fails.
    pub(crate) fn values(&self, at: Pointer, bytes: u64) -> Vec<f32> {
        let mut words = vec![0; bytes as usize];
        let gpu = &self.quiet.gpu;
        // SAFETY: the caller's range is one of the stack's own; the bytes are not pinned, and are read after
        // the wait.
        let copied = gpu.enter().and_then(|()| unsafe { gpu.stream().download(at.0, &mut words) });
        copied.and_then(|()| gpu.stream().wait()).unwrap_or_else(|fault| panic!("{fault}"));
        words.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }

    /// Starts a step that runs layers of the tower over images, the last of which leaves the rows of their
    /// tokens in their slots.
    ///
    /// # Panics
    /// When the images, their slots or the layers break the tower's limits, a step waits for what it samples
    /// by, or too many are in flight. Unwinds when the device has failed.
    pub fn see<P: Programs>(&mut self, programs: &P, images: &[Shown], layers: Range<usize>) -> Ticket {
        let in_flight = self.submitted - self.collected;
        assert!(in_flight < self.ring.steps as u64, "{in_flight} steps are in flight already");
        assert!(self.unsampled.is_empty(), "a step is not sampled in, and an image is to be seen");
        if let Err(fault) = self.start_to_see(programs, images, layers) {
            fail(self.exchange.as_ref(), fault);
        }
        self.submitted += 1;
        Ticket(self.submitted)
    }

    fn start_to_see<P: Programs>(
        &mut self,
        programs: &P,
        images: &[Shown],
        layers: Range<usize>,
    ) -> Result<(), Fault> {
        let gpu = self.quiet.gpu.clone();
        gpu.enter()?;
        let sight = self.sight.as_mut().expect("a model without a vision tower is not asked to see");
        let (patches, kept) = sight.tower.keep(images, &layers);
        let Sight { tower, staging, next } = sight;
        if layers.start == 0 {
            let staging = &mut staging[*next];
            *next = 1 - *next;
            let bytes = staging.fill(images)?;
            // In order on the steps' stream: the images before may still be looked at.
            // SAFETY: the buffer has room for the most patches, and the pinned bytes are not written before
            // the event has passed.
            unsafe { gpu.stream().upload(tower.pixels.0, bytes) }?;
            staging.taken.record(gpu.stream())?;
        }
        let tokens = kept.last().map_or(0, |last| last.rows.end);
        let index = self.ring.of_step(self.submitted).start;
        self.buffer.see(patches, tokens);
        let grids = images.iter().map(|image| {
            let Grid { frames, rows, columns } = image.patches.grid;
            [frames, rows, columns].map(|it| it as i32)
        });
        self.upload_seen(index, &PatchGrids::new(grids))?;
        let flight = &mut self.flights[index];
        flight.wants.clear();
        (flight.program, flight.sees) = ("see", true);
        let tables = flight.tables;
        let extents = Extents { tokens: patches as u32, sequences: 1, outputs: tokens as u32 };
        let mut queue = self.quiet.queue("see", false, extents, tables);
        programs.see(patches, &kept, layers, &mut queue);
        queue.finish()?;
        self.flights[index].done.record(gpu.stream())
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn threads_copy_every_byte_once() {
        let from: Vec<u8> = (0..1000).map(|at| (at * 7 % 251) as u8).collect();
        for (length, threads) in [(0, 1), (1, 1), (3, 4), (4, 4), (999, 4), (1000, 3)] {
            for of_part in [1, 5, 250, 1000] {
                let mut to = vec![0; length];
                copy(&from[..length].chunks(of_part).collect::<Vec<_>>(), &mut to, threads);
                assert_eq!(to, from[..length], "{length} bytes, {threads} threads, parts of {of_part}");
            }
        }
    }
}

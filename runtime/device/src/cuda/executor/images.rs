//! Images: the tower's step over one, and the pinned memory that its pixels pass through.

use super::super::driver::Event;
use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::wire::bytes_of;
use super::{Executor, Programs};
use crate::cuda::pointer::Pointer;
use crate::cuda::queue::Extents;
use crate::cuda::world::fail;
use monomorph_abi::images::PatchGrid;
use monomorph_model::{FeatureSlot, Grid, Patches, Ticket, VisionSpec};

/// What a stack's tower is, and where it takes pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tower {
    pub(crate) vision: VisionSpec,
    /// Most patches of a side of an image.
    pub(crate) most_side: usize,
    /// `[patches, values]` on the device.
    pub(crate) pixels: Pointer,
}

/// The tower of a stack that has one.
#[derive(Debug)]
pub(super) struct Sight {
    tower: Tower,
    /// Grown to the largest image seen.
    pixels: Pinned,
    /// Recorded when the device has taken them.
    taken: Event,
}

impl Tower {
    /// Checks an image, by whose numbers kernels index without further checks.
    ///
    /// # Panics
    /// When it has no patches, more than a pass takes or than a side may have, or other than whole merge
    /// blocks; or there is not one row of pixels a patch.
    fn check(&self, image: &Patches, slot: FeatureSlot) {
        let Tower { vision, most_side, .. } = self;
        let Grid { frames, rows, columns } = image.grid;
        let count = rows.checked_mul(columns).and_then(|frame| frame.checked_mul(frames));
        assert!(
            count.is_some_and(|count| (1..=vision.most_patches).contains(&count))
                && rows.max(columns) <= *most_side,
            "an image of {frames} x {rows} x {columns} patches, and the limits are {} and {most_side} a side",
            vision.most_patches
        );
        assert!(
            rows.is_multiple_of(vision.merge) && columns.is_multiple_of(vision.merge),
            "{rows} x {columns} patches are no whole blocks of {} a side",
            vision.merge
        );
        let (given, values) = (image.pixels.len(), vision.values);
        let count = image.grid.patches();
        assert!(given == count * values, "{given} numbers are not {values} a patch of {count}");
        assert!((slot.0 as usize) < vision.slots, "there is no {slot:?}");
    }
}

impl Sight {
    pub(super) fn new(tower: Tower) -> Result<Sight, Fault> {
        Ok(Sight { tower, pixels: Pinned::zeroed(0)?, taken: Event::new()? })
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

    /// Starts a step that runs the tower over an image and leaves the rows of its tokens in `slot`.
    ///
    /// # Panics
    /// When the image or the slot breaks the tower's limits, a step waits for what it samples by, or too many
    /// are in flight. Unwinds when the device has failed.
    pub fn see<P: Programs>(&mut self, programs: &P, image: &Patches, slot: FeatureSlot) -> Ticket {
        let in_flight = self.submitted - self.collected;
        assert!(in_flight < self.ring.steps as u64, "{in_flight} steps are in flight already");
        assert!(self.unsampled.is_empty(), "a step is not sampled in, and an image is to be seen");
        if let Err(fault) = self.start_to_see(programs, image, slot) {
            fail(self.exchange.as_ref(), fault);
        }
        self.submitted += 1;
        Ticket(self.submitted)
    }

    fn start_to_see<P: Programs>(
        &mut self,
        programs: &P,
        image: &Patches,
        slot: FeatureSlot,
    ) -> Result<(), Fault> {
        let gpu = self.quiet.gpu.clone();
        gpu.enter()?;
        let sight = self.sight.as_mut().expect("a model without a vision tower is not asked to see");
        sight.tower.check(image, slot);
        // Pinned bytes must not be written during their copy.
        sight.taken.wait()?;
        let bytes = bytes_of(image.pixels);
        if bytes.len() > sight.pixels.bytes().len() {
            sight.pixels = Pinned::zeroed(bytes.len().next_power_of_two())?;
        }
        sight.pixels.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        // In order on the steps' stream: the image before may still be looked at.
        // SAFETY: the buffer has room for the most patches, and the pinned bytes are not written before the
        // event has passed.
        unsafe { gpu.stream().upload(sight.tower.pixels.0, &sight.pixels.bytes()[..bytes.len()]) }?;
        sight.taken.record(gpu.stream())?;

        let (patches, vision) = (image.grid.patches(), sight.tower.vision);
        let tokens = patches / (vision.merge * vision.merge);
        let index = self.ring.of_step(self.submitted).start;
        self.buffer.see(patches, tokens);
        let Grid { frames, rows, columns } = image.grid;
        let [frames, rows, columns] = [frames, rows, columns].map(|it| it as i32);
        let grid = PatchGrid { frames, rows, columns, reserved: 0 };
        self.upload_seen(index, grid)?;
        let flight = &mut self.flights[index];
        flight.wants.clear();
        (flight.program, flight.sees) = ("see", true);
        let tables = flight.tables;
        let extents = Extents { tokens: patches as u32, sequences: 1, outputs: tokens as u32 };
        let mut queue = self.quiet.queue("see", false, extents, tables);
        programs.see(patches, slot.0 as usize, &mut queue);
        queue.finish()?;
        self.flights[index].done.record(gpu.stream())
    }
}

//! Steps of sequences with blocks on disk.

use super::super::world::fail;
use super::{Executor, StepPart, Want};
use monomorph_model::{BlockId, OffloadRoom, OffloadSlot, Step};

impl Executor {
    /// The places on disk, with K/V offload.
    pub fn offload(&self) -> Option<OffloadRoom> {
        self.offload.as_ref().map(super::KvOffload::room)
    }

    /// Writes a group of blocks to a place on disk.
    ///
    /// # Errors
    /// When the disk is full or fails, or this server keeps no blocks there.
    ///
    /// # Panics
    /// When they are not a group of the device's blocks. Unwinds when the device has failed.
    pub fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        let Some(offload) = &mut self.offload else {
            return Err(format!("{blocks:?} cannot be sent to {to:?}: this server keeps no blocks on disk"));
        };
        let (gpu, stream) = (&self.quiet.gpu, self.quiet.gpu.stream());
        let sent = gpu.enter().and_then(|()| offload.send(stream, blocks, to));
        sent.unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault))
    }

    /// Called after the launches of a part. If blocks could not be read, its sequences with blocks on disk
    /// get no result.
    pub(super) fn lose(&mut self, part: &StepPart, step: &Step) {
        let Some(why) = self.offload.as_mut().and_then(super::KvOffload::take_failure) else { return };
        let blocks = self.states.blocks();
        for (at, want) in &mut self.flights[part.flight].wants {
            if step.sequences[*at].blocks.iter().any(|block| block.0 as usize >= blocks) {
                *want = Want::Lost(why.clone());
            }
        }
    }
}

//! Copies of K/V blocks and recurrent states to host memory and back.
//!
//! They pass through one piece of pinned memory, part by part in device order, and are waited for: this
//! happens between steps, when a sequence is pre-empted or resumed.

use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::pointer::Pointer;
use super::super::world::fail;
use super::Executor;
use monomorph_model::{BlockId, SlidingId, StatePlace};

impl Executor {
    /// Copies a K/V block, over all layers and bodies, to the host.
    ///
    /// # Panics
    /// When there is no such block, or `into` has another size. Unwinds when the device has failed.
    pub fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.read(&self.states.block(block), into)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    /// Writes what [`Executor::read_block`] read.
    ///
    /// # Panics
    /// As [`Executor::read_block`].
    pub fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.write(&self.states.block(block), from)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    /// Copies a block of layers with a sliding window, over all of them, to the host.
    ///
    /// # Panics
    /// As [`Executor::read_block`].
    pub fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        self.read(&self.states.sliding(block), into)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    /// Writes what [`Executor::read_sliding`] read.
    ///
    /// # Panics
    /// As [`Executor::read_block`].
    pub fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.write(&self.states.sliding(block), from)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    /// Copies a recurrent state, over all layers and bodies, to the host.
    ///
    /// # Panics
    /// When there is no such slot or snapshot, or `into` has another size. Unwinds when the device has
    /// failed.
    pub fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        self.read(&self.states.state(place), into)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    /// Writes what [`Executor::read_state`] read.
    ///
    /// # Panics
    /// As [`Executor::read_state`].
    pub fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        self.write(&self.states.state(place), from)
            .unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault));
    }

    fn read(&mut self, parts: &[(Pointer, u64)], into: &mut [u8]) -> Result<(), Fault> {
        self.quiet.gpu.enter()?;
        let staged = staged(&mut self.staged, parts, into.len())?;
        let mut rest = &mut staged.bytes_mut()[..into.len()];
        for (from, bytes) in parts {
            let (to, behind) = rest.split_at_mut(*bytes as usize);
            // SAFETY: the part lies in the arena, and the pinned bytes are not read before the wait below.
            unsafe { self.quiet.gpu.stream().download(from.0, to) }?;
            rest = behind;
        }
        self.quiet.gpu.stream().wait()?;
        into.copy_from_slice(&staged.bytes()[..into.len()]);
        Ok(())
    }

    fn write(&mut self, parts: &[(Pointer, u64)], from: &[u8]) -> Result<(), Fault> {
        self.quiet.gpu.enter()?;
        let staged = staged(&mut self.staged, parts, from.len())?;
        staged.bytes_mut()[..from.len()].copy_from_slice(from);
        let mut rest = &staged.bytes()[..from.len()];
        for (to, bytes) in parts {
            let (from, behind) = rest.split_at(*bytes as usize);
            // SAFETY: the part lies in the arena, and the pinned bytes are not written before the wait below.
            unsafe { self.quiet.gpu.stream().upload(to.0, from) }?;
            rest = behind;
        }
        self.quiet.gpu.stream().wait()
    }
}

/// Pinned memory for all parts.
///
/// # Panics
/// When the parts do not add up to `bytes`.
fn staged<'a>(
    staged: &'a mut Option<Pinned>,
    parts: &[(Pointer, u64)],
    bytes: usize,
) -> Result<&'a mut Pinned, Fault> {
    let needed: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    assert!(needed == bytes as u64, "{needed} bytes are not copied to or from {bytes}");
    if staged.as_ref().is_none_or(|pinned| pinned.bytes().len() < bytes) {
        // The smaller allocation is freed first.
        drop(staged.take());
        *staged = Some(Pinned::zeroed(bytes)?);
    }
    Ok(staged.as_mut().expect("just claimed"))
}

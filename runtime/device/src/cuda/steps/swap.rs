//! K/V blocks and recurrent states on their way to the host's memory and back.
//!
//! They pass through one piece of pinned memory, part by part as they stand on the device, and are waited
//! for: this happens between steps, when a sequence gives its place up or takes one again.

use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::memory::Pointer;
use super::Steps;
use monomorph_model::{BlockId, StatePlace};

impl Steps {
    /// Copies a K/V block, all layers' and bodies', to the host.
    ///
    /// # Panics
    /// When there is no such block, or `into` is of another size. Unwinds when the device has failed.
    pub fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.read(&self.states.block(block), into).unwrap_or_else(|fault| fault.raise());
    }

    /// Puts back what [`Steps::read_block`] read.
    ///
    /// # Panics
    /// As [`Steps::read_block`].
    pub fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.write(&self.states.block(block), from).unwrap_or_else(|fault| fault.raise());
    }

    /// Copies a recurrent state, all layers' and bodies', to the host.
    ///
    /// # Panics
    /// When there is no such slot or snapshot, or `into` is of another size. Unwinds when the device has
    /// failed.
    pub fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        self.read(&self.states.state(place), into).unwrap_or_else(|fault| fault.raise());
    }

    /// Puts back what [`Steps::read_state`] read.
    ///
    /// # Panics
    /// As [`Steps::read_state`].
    pub fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        self.write(&self.states.state(place), from).unwrap_or_else(|fault| fault.raise());
    }

    fn read(&mut self, parts: &[(Pointer, u64)], into: &mut [u8]) -> Result<(), Fault> {
        self.quiet.0.enter()?;
        let staged = staged(&mut self.staged, parts, into.len())?;
        let mut rest = &mut staged.bytes_mut()[..into.len()];
        for (from, bytes) in parts {
            let (to, behind) = rest.split_at_mut(*bytes as usize);
            // SAFETY: the part is the arena's, and nobody looks at the pinned bytes before the wait below.
            unsafe { self.quiet.0.stream().download(from.0, to) }?;
            rest = behind;
        }
        self.quiet.0.stream().wait()?;
        into.copy_from_slice(&staged.bytes()[..into.len()]);
        Ok(())
    }

    fn write(&mut self, parts: &[(Pointer, u64)], from: &[u8]) -> Result<(), Fault> {
        self.quiet.0.enter()?;
        let staged = staged(&mut self.staged, parts, from.len())?;
        staged.bytes_mut()[..from.len()].copy_from_slice(from);
        let mut rest = &staged.bytes()[..from.len()];
        for (to, bytes) in parts {
            let (from, behind) = rest.split_at(*bytes as usize);
            // SAFETY: the part is the arena's, and the pinned bytes are not written again before the wait
            // below.
            unsafe { self.quiet.0.stream().upload(to.0, from) }?;
            rest = behind;
        }
        self.quiet.0.stream().wait()
    }
}

/// Pinned memory for all parts.
///
/// # Panics
/// When they are not of `bytes` in all.
fn staged<'a>(
    staged: &'a mut Option<Pinned>,
    parts: &[(Pointer, u64)],
    bytes: usize,
) -> Result<&'a mut Pinned, Fault> {
    let needed: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    assert!(needed == bytes as u64, "{needed} bytes are not copied to or from {bytes}");
    if staged.as_ref().is_none_or(|pinned| pinned.bytes().len() < bytes) {
        // The smaller one goes first.
        drop(staged.take());
        *staged = Some(Pinned::zeroed(bytes)?);
    }
    Ok(staged.as_mut().expect("just claimed"))
}

//! Options of swapping: where pre-empted sequences are copied to.

use monomorph_model::{ModelSpec, SlidingSpec};
use monomorph_store::{DiskStore, OpenError, Options, whole_page};
use std::path::PathBuf;

/// Pages in transfer at a time: as many as keep an NVMe drive busy with pages of a few hundred KB.
const DEPTH: u32 = 32;

/// Memory for copies of pre-empted sequences. Without it they are prefilled again from their first token.
#[derive(Clone, Debug)]
pub struct SwapOptions {
    /// Bytes of host memory, allocated as needed.
    pub host_bytes: u64,
    /// A second tier on disk, if there is one.
    pub disk: Option<SwapDisk>,
    /// Whether sequences are copied even where prefilling again would be faster.
    pub always: bool,
    /// Receives a line when a disk fails and a sequence is prefilled again because of it.
    pub report: fn(std::fmt::Arguments),
    /// Injected faults of the disk.
    #[cfg(feature = "scripted")]
    pub faults: Option<monomorph_store::Faults>,
}

/// Room on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDisk {
    /// Directory of the file, which has no name there and is removed with the engine.
    pub directory: PathBuf,
    /// Size of the file in bytes, allocated at start.
    pub bytes: u64,
}

/// Bytes of a page: those of a block of the layers that read all positions. A model may have no such layers.
pub(crate) fn page_bytes(spec: &ModelSpec) -> usize {
    whole_page(spec.block_bytes.max(1))
}

impl Default for SwapOptions {
    /// No room.
    fn default() -> SwapOptions {
        SwapOptions {
            host_bytes: 0,
            disk: None,
            always: false,
            report: |_| {},
            #[cfg(feature = "scripted")]
            faults: None,
        }
    }
}

impl SwapOptions {
    /// Bytes of a sequence of `tokens` tokens, in whole pages, of a model that may have layers with a sliding
    /// window.
    pub fn bytes_of(&self, tokens: usize, spec: &ModelSpec, sliding: Option<SlidingSpec>) -> u64 {
        let page = page_bytes(spec) as u64;
        let blocks = tokens.div_ceil(spec.block_tokens);
        let windows = sliding.map_or(0, |it| {
            let held = (blocks - it.of(spec).first(tokens).min(blocks)) as u64;
            held * (it.block_bytes as u64).div_ceil(page)
        });
        (blocks as u64 + windows + spec.state_bytes.div_ceil(page)) * page
    }

    /// Checks the options against a model.
    ///
    /// # Errors
    /// When not even a sequence of one block fits, or the disk lacks the room; the message says how much is
    /// enough.
    pub fn check(&self, spec: &ModelSpec, sliding: Option<SlidingSpec>) -> Result<(), String> {
        let least = self.bytes_of(1, spec, sliding);
        if self.disk.is_some() && self.host_bytes == 0 {
            return Err("a disk to swap to needs memory to swap through: --swap-space is 0".to_owned());
        }
        for (bytes, what) in
            [(Some(self.host_bytes), "space"), (self.disk.as_ref().map(|disk| disk.bytes), "disk")]
        {
            if let Some(bytes @ 1..) = bytes
                && bytes < least
            {
                return Err(format!(
                    "--swap-{what} is {bytes} bytes, and the shortest sequence takes {least}"
                ));
            }
        }
        let quiet = SwapOptions { report: |_| {}, ..self.clone() };
        quiet.open(spec).map(|_| ()).map_err(|error| format!("--swap-dir: {error}"))
    }

    /// The disk.
    pub(crate) fn open(&self, spec: &ModelSpec) -> Result<Option<DiskStore>, OpenError> {
        let Some(disk) = &self.disk else { return Ok(None) };
        let options = Options { page_bytes: page_bytes(spec), capacity_bytes: disk.bytes, depth: DEPTH };
        #[cfg(feature = "scripted")]
        if let Some(faults) = &self.faults {
            return DiskStore::open_with_faults(&disk.directory, options, faults, self.report).map(Some);
        }
        DiskStore::open(&disk.directory, options, self.report).map(Some)
    }
}

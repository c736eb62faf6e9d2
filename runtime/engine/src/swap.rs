//! Where sequences that have to make room are kept: what a start of the server decides about it.

use monomorph_model::ModelSpec;
use monomorph_store::{DiskStore, OpenError, Options, whole_page};
use std::path::PathBuf;

/// Pages on their way to or from a disk at a time: what an NVMe drive needs to be busy with pages of a few
/// hundred KB.
const DEPTH: u32 = 32;

/// Room for what sequences that were pre-empted had computed. Without any they are fed again from their first
/// token.
#[derive(Clone, Debug)]
pub struct SwapOptions {
    /// Bytes of the host's memory, claimed as they are needed.
    pub host_bytes: u64,
    /// Room on disk behind that, where there is any.
    pub disk: Option<SwapDisk>,
    /// Whether sequences are copied that would sooner be fed again, too.
    pub always: bool,
    /// Takes a line when a disk fails and a sequence is fed again because of it.
    pub report: fn(std::fmt::Arguments),
    /// What goes wrong with the disk.
    #[cfg(feature = "scripted")]
    pub faults: Option<monomorph_store::Faults>,
}

/// Room on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDisk {
    /// Where the file is made. It has no name there, and is gone when the engine is.
    pub directory: PathBuf,
    /// Bytes of it, claimed at once.
    pub bytes: u64,
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
    /// Bytes that a sequence of `tokens` tokens takes, whole pages of it.
    pub fn bytes_of(&self, tokens: usize, spec: &ModelSpec) -> u64 {
        let page = whole_page(spec.block_bytes) as u64;
        (tokens.div_ceil(spec.block_tokens) as u64 + spec.state_bytes.div_ceil(page)) * page
    }

    /// Checks them against a model, without keeping anything.
    ///
    /// # Errors
    /// When they hold not even a sequence of one block, or the disk is not as they say; the message says what
    /// would do.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), String> {
        let least = self.bytes_of(1, spec);
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
        let options =
            Options { page_bytes: whole_page(spec.block_bytes), capacity_bytes: disk.bytes, depth: DEPTH };
        #[cfg(feature = "scripted")]
        if let Some(faults) = &self.faults {
            return DiskStore::open_with_faults(&disk.directory, options, faults, self.report).map(Some);
        }
        DiskStore::open(&disk.directory, options, self.report).map(Some)
    }
}

//! A file mapped read-only. The only unsafe code, tests' aside.

use crate::WeightsError;
use memmap2::{Mmap, UncheckedAdvice};
use std::path::{Path, PathBuf};

/// A mapped file and where it came from.
#[derive(Debug)]
pub(crate) struct Mapping {
    path: PathBuf,
    map: Mmap,
}

impl Mapping {
    /// Maps a regular, non-empty file.
    pub(crate) fn open(path: &Path) -> Result<Mapping, WeightsError> {
        // Asked before opening: opening a named pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(|error| WeightsError::io(path, error))?;
        if !metadata.is_file() {
            return Err(WeightsError::malformed(path, "not a regular file"));
        }
        if metadata.len() == 0 {
            return Err(WeightsError::malformed(path, "the file is empty"));
        }
        let file = std::fs::File::open(path).map_err(|error| WeightsError::io(path, error))?;
        // SAFETY: the mapping is read-only and private to this value. Its bytes are only ever read as bytes
        // (every interpretation is checked anew), so a file rewritten in place yields wrong numbers, not
        // undefined behaviour in safe code; a file cut short while mapped ends the process with SIGBUS, as
        // with every reader that maps.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| WeightsError::io(path, error))?;
        Ok(Mapping { path: path.to_owned(), map })
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives the mapping's resident pages back; touching them again reads the file again.
    pub(crate) fn release(&self) -> std::io::Result<()> {
        // SAFETY: DONTNEED drops pages of a shared, read-only file mapping; the next read faults the same
        // bytes in from the file, so slices into the mapping stay valid and unchanged.
        unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) }
    }
}

//! A file of weights, read on demand. Files are not mapped: if a mapped file is truncated, the system ends
//! the process, and if it is overwritten, reads return the new contents; a read reports that it failed
//! (docs/adr/0033). Of a GGUF file that was packed, the header that was kept is read in the same way.

use crate::WeightsError;
use crate::channels::{Channels, Counts, Direct, failed_at};
use crate::made_up::MadeUp;
use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened file, with the length it had then; or the header of one that a file of packed weights kept.
#[derive(Clone, Debug)]
pub struct WeightsFile {
    path: PathBuf,
    file: Arc<File>,
    stamp: Stamp,
    kept: Option<KeptHeader>,
    counts: Arc<Counts>,
    /// The same file, where it is read past the system's cache.
    direct: Option<Direct>,
}

/// The header of a file that was packed.
#[derive(Clone, Debug)]
struct KeptHeader {
    /// Where it stands.
    place: Range<u64>,
    /// How long the file was.
    whole: u64,
}

/// Properties that change when a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

impl WeightsFile {
    /// Opens a regular, non-empty file.
    pub(crate) fn open(path: &Path) -> Result<WeightsFile, WeightsError> {
        let io = |error| WeightsError::io(path, error);
        // Checked before opening, because opening a named pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::malformed(path, "not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        let stamp = Stamp::of(&file.metadata().map_err(io)?);
        if stamp.bytes == 0 {
            return Err(WeightsError::malformed(path, "the file is empty"));
        }
        let (path, file, counts) = (path.to_owned(), Arc::new(file), Arc::default());
        Ok(WeightsFile { path, file, stamp, kept: None, counts, direct: None })
    }

    /// The header that a file of packed weights, which is this, kept of one of so many bytes.
    pub(crate) fn kept_header(&self, place: Range<u64>, whole: u64) -> WeightsFile {
        WeightsFile { kept: Some(KeptHeader { place, whole }), ..self.clone() }
    }

    /// Has tensors read past the system's cache from now on, as far as that does not have them, and counts
    /// what is read together with what is of other files.
    ///
    /// # Errors
    /// Why they are not.
    pub(crate) fn read_directly(
        &mut self,
        channels: &Arc<Channels>,
        counts: &Arc<Counts>,
    ) -> Result<(), String> {
        self.counts = Arc::clone(counts);
        self.direct = Some(Direct::open(&self.path, &self.file, channels)?);
        Ok(())
    }

    /// Has it read through the system's cache, and counts what is read with that of other files.
    pub(crate) fn read_plainly(&mut self, counts: &Arc<Counts>) {
        (self.counts, self.direct) = (Arc::clone(counts), None);
    }

    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Size when it was opened; of one that was packed, its size then.
    pub fn bytes(&self) -> u64 {
        self.kept.as_ref().map_or(self.stamp.bytes, |kept| kept.whole)
    }

    /// How many of its first bytes are there: all, or what was kept of them.
    pub(crate) fn beginning_bytes(&self) -> u64 {
        self.kept.as_ref().map_or(self.stamp.bytes, |KeptHeader { place, .. }| place.end - place.start)
    }

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// When the file cannot be read, or has become too short.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), WeightsError> {
        Counts::add(&self.counts.plain, into.len());
        self.read_uncounted(at, into)
    }

    /// The same, which the caller counts.
    pub(crate) fn read_uncounted(&self, at: u64, into: &mut [u8]) -> Result<(), WeightsError> {
        let at = match &self.kept {
            None => at,
            Some(KeptHeader { place, .. }) => {
                let start = place.start.checked_add(at);
                let inside = |start: &u64| *start <= place.end && into.len() as u64 <= place.end - start;
                start.filter(inside).ok_or_else(|| {
                    let what = format!("keeps nothing of the {} bytes from {at} on of a file", into.len());
                    WeightsError::malformed(&self.path, what)
                })?
            }
        };
        self.file.read_exact_at(into, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                let end = at.saturating_add(into.len() as u64);
                WeightsError::malformed(
                    &self.path,
                    format!(
                        "was cut short while it was read: bytes {at} to {end} of the {} that it had are not there",
                        self.stamp.bytes
                    ),
                )
            }
            _ => failed_at(&self.path, at, into.len(), error),
        })
    }

    /// The first bytes, at most `most`.
    pub(crate) fn beginning(&self, most: usize) -> Result<Vec<u8>, WeightsError> {
        let bytes = usize::try_from(self.beginning_bytes()).unwrap_or(usize::MAX).min(most);
        let mut beginning = vec![0; bytes];
        self.read_at(0, &mut beginning)?;
        Ok(beginning)
    }

    /// Refuses a file that was modified since it was opened: the bytes read may mix old and new contents.
    pub(crate) fn check_unchanged(&self) -> Result<(), WeightsError> {
        let metadata = self.file.metadata().map_err(|error| WeightsError::io(&self.path, error))?;
        if Stamp::of(&metadata) == self.stamp {
            return Ok(());
        }
        Err(WeightsError::malformed(
            &self.path,
            "was written to while it was read; start again once it is whole",
        ))
    }
}

/// The bytes of a tensor: in memory, in a file that they are read from on demand, or made up.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub(crate) Location<'a>);

/// Where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location<'a> {
    Memory(&'a [u8]),
    File {
        file: &'a WeightsFile,
        start: u64,
        len: usize,
    },
    MadeUp {
        it: MadeUp,
        start: usize,
        len: usize,
    },
    /// Of a tensor that is there only as it was packed, in this file.
    Packed {
        path: &'a Path,
        len: usize,
    },
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(Location::Memory(bytes))
    }
}

impl<'a> Bytes<'a> {
    pub(crate) fn of_file(file: &'a WeightsFile, range: Range<usize>) -> Bytes<'a> {
        Bytes(Location::File { file, start: range.start as u64, len: range.len() })
    }

    pub(crate) fn made_up(it: MadeUp, len: usize) -> Bytes<'a> {
        Bytes(Location::MadeUp { it, start: 0, len })
    }

    /// Of a tensor that is there only as it was packed, in the file at `path`.
    pub(crate) fn packed(path: &'a Path, len: usize) -> Bytes<'a> {
        Bytes(Location::Packed { path, len })
    }

    /// Whether they are made up.
    pub fn are_made_up(&self) -> bool {
        matches!(self.0, Location::MadeUp { .. })
    }

    /// The file that they are in, and where they begin in it.
    pub fn place(&self) -> Option<(&'a WeightsFile, u64)> {
        match self.0 {
            Location::File { file, start, .. } => Some((file, start)),
            Location::Memory(_) | Location::MadeUp { .. } | Location::Packed { .. } => None,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self.0 {
            Location::Memory(bytes) => bytes.len(),
            Location::File { len, .. } | Location::MadeUp { len, .. } | Location::Packed { len, .. } => len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A range of the bytes.
    ///
    /// # Panics
    /// When the range exceeds them.
    pub fn slice(&self, range: Range<usize>) -> Bytes<'a> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        Bytes(match self.0 {
            Location::Memory(bytes) => Location::Memory(&bytes[range]),
            Location::File { file, start, .. } => {
                Location::File { file, start: start + range.start as u64, len: range.len() }
            }
            Location::MadeUp { it, start, .. } => {
                Location::MadeUp { it, start: start + range.start, len: range.len() }
            }
            Location::Packed { path, .. } => Location::Packed { path, len: range.len() },
        })
    }

    /// All bytes.
    ///
    /// # Errors
    /// When the file cannot be read, or has become too short.
    pub fn read(&self) -> Result<Cow<'a, [u8]>, WeightsError> {
        match self.0 {
            Location::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Location::File { file, start, len } => {
                let mut bytes = vec![0; len];
                file.read_at(start, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
            Location::MadeUp { it, start, len } => {
                let mut bytes = vec![0; len];
                it.fill(start, &mut bytes);
                Ok(Cow::Owned(bytes))
            }
            Location::Packed { path, .. } => Err(only_packed(path)),
        }
    }
}

/// What a tensor's bytes were asked for that are not kept.
pub(crate) fn only_packed(path: &Path) -> WeightsError {
    WeightsError::malformed(path, "holds weights as they were packed, and not the tensors of a checkpoint")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, WeightsFile) {
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), bytes).unwrap();
        let file = WeightsFile::open(named.path()).unwrap();
        (named, file)
    }

    /// With a mapped file, this ended the process with SIGBUS.
    #[test]
    fn a_file_that_is_cut_short_is_an_error_that_names_it() {
        let (named, file) = file(&[7; 10_000]);
        let bytes = Bytes::of_file(&file, 0..10_000);
        assert_eq!(&*bytes.slice(0..10).read().unwrap(), [7; 10]);
        file.check_unchanged().unwrap();
        named.as_file().set_len(4096).unwrap();
        let error = bytes.read().unwrap_err().to_string();
        assert!(error.contains("cut short") && error.contains(&*named.path().to_string_lossy()), "{error}");
        assert!(bytes.slice(4090..4100).read().is_err());
        assert!(file.check_unchanged().is_err());
    }

    #[test]
    fn a_file_that_is_written_over_is_seen() {
        let (named, file) = file(&[7; 100]);
        // File system clocks tick every few milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(named.path(), [8; 100]).unwrap();
        let error = file.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("written to while it was read"), "{error}");
    }
}

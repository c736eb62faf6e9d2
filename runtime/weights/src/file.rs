//! A file of weights, read where it is needed. Nothing is mapped: of a mapped file that is cut short the
//! system ends the process, and one that is written over yields whatever stands there by then; a read says
//! that it failed (docs/adr/0033).

use crate::WeightsError;
use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An opened file, as long as it was when it was opened.
#[derive(Debug)]
pub struct WeightsFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What changes when a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
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
        // Asked before opening: opening a named pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::malformed(path, "not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        let stamp = Stamp::of(&file.metadata().map_err(io)?);
        if stamp.bytes == 0 {
            return Err(WeightsError::malformed(path, "the file is empty"));
        }
        Ok(WeightsFile { path: path.to_owned(), file, stamp })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes it had when it was opened.
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// When the file cannot be read, or no longer has so many bytes.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), WeightsError> {
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
            _ => WeightsError::io(&self.path, error),
        })
    }

    /// The first bytes, at most so many.
    pub(crate) fn beginning(&self, most: usize) -> Result<Vec<u8>, WeightsError> {
        let bytes = usize::try_from(self.stamp.bytes).unwrap_or(usize::MAX).min(most);
        let mut beginning = vec![0; bytes];
        self.read_at(0, &mut beginning)?;
        Ok(beginning)
    }

    /// Refuses a file that was written to since it was opened: what was read of it may be of two minds.
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

/// The bytes of a tensor: in memory, or in a file that they are read from when they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(Place<'a>);

#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Memory(&'a [u8]),
    File { file: &'a WeightsFile, start: u64, len: usize },
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(Place::Memory(bytes))
    }
}

impl<'a> Bytes<'a> {
    pub(crate) fn of_file(file: &'a WeightsFile, range: Range<usize>) -> Bytes<'a> {
        Bytes(Place::File { file, start: range.start as u64, len: range.len() })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self.0 {
            Place::Memory(bytes) => bytes.len(),
            Place::File { len, .. } => len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Only those of a range.
    ///
    /// # Panics
    /// When it goes beyond them.
    pub fn slice(&self, range: Range<usize>) -> Bytes<'a> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        Bytes(match self.0 {
            Place::Memory(bytes) => Place::Memory(&bytes[range]),
            Place::File { file, start, .. } => {
                Place::File { file, start: start + range.start as u64, len: range.len() }
            }
        })
    }

    /// All of them.
    ///
    /// # Errors
    /// When the file cannot be read, or is no longer long enough.
    pub fn read(&self) -> Result<Cow<'a, [u8]>, WeightsError> {
        match self.0 {
            Place::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Place::File { file, start, len } => {
                let mut bytes = vec![0; len];
                file.read_at(start, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

/// Bytes read at a time: few calls of the system, and little memory for each thread that reads.
const WINDOW: usize = 256 << 10;
/// Tensors that a thread reads in turn: codes and scales of several parts of a matrix.
const WINDOWS: usize = 8;

/// What a thread has read of the tensors that it is going through, so that row after row is no call of the
/// system each.
#[derive(Debug, Default)]
pub struct Windows<'a> {
    windows: Vec<Window<'a>>,
    next: usize,
}

#[derive(Debug)]
struct Window<'a> {
    file: &'a WeightsFile,
    /// Where the tensor begins in the file.
    tensor: u64,
    /// Where the window begins in the tensor.
    start: usize,
    bytes: Vec<u8>,
}

impl<'a> Windows<'a> {
    /// The bytes of a range of a tensor's.
    ///
    /// # Errors
    /// When the file cannot be read, or is no longer long enough.
    ///
    /// # Panics
    /// When the range goes beyond the tensor.
    pub fn read(&mut self, of: Bytes<'a>, range: Range<usize>) -> Result<&[u8], WeightsError> {
        assert!(range.start <= range.end && range.end <= of.len(), "{range:?} of {} bytes", of.len());
        let (file, tensor, len) = match of.0 {
            Place::Memory(bytes) => return Ok(&bytes[range]),
            Place::File { file, start, len } => (file, start, len),
        };
        let known = self.windows.iter().position(|it| std::ptr::eq(it.file, file) && it.tensor == tensor);
        let at = known.unwrap_or_else(|| self.claim(file, tensor));
        let window = &mut self.windows[at];
        if range.start < window.start || range.end > window.start + window.bytes.len() {
            let end = range.end.max(len.min(range.start + WINDOW));
            window.start = range.start;
            window.bytes.resize(end - range.start, 0);
            if let Err(error) = file.read_at(tensor + range.start as u64, &mut window.bytes) {
                // What is in it now is nobody's.
                window.bytes.clear();
                return Err(error);
            }
        }
        Ok(&window.bytes[range.start - window.start..range.end - window.start])
    }

    /// An empty window for a tensor: a new one, or that of the tensor which has had its own for longest.
    fn claim(&mut self, file: &'a WeightsFile, tensor: u64) -> usize {
        if self.windows.len() < WINDOWS {
            self.windows.push(Window { file, tensor, start: 0, bytes: Vec::new() });
            return self.windows.len() - 1;
        }
        let at = self.next;
        self.next = (at + 1) % WINDOWS;
        let window = &mut self.windows[at];
        (window.file, window.tensor, window.start) = (file, tensor, 0);
        window.bytes.clear();
        at
    }
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

    #[test]
    fn windows_give_what_the_file_holds_in_any_order() {
        let content: Vec<u8> = (0..3 * WINDOW + 77).map(|at| (at * 31 % 251) as u8).collect();
        let (_named, file) = file(&content);
        let mut windows = Windows::default();
        // More tensors than windows, in turn, forwards and backwards.
        for step in [1usize, 7, 40_009] {
            for turn in 0..200 {
                let tensor = turn % (WINDOWS + 3);
                let begin = tensor * 1000;
                let bytes = Bytes::of_file(&file, begin..content.len());
                let first = (turn * step * 97) % (bytes.len() - 500);
                let range = first..first + 500;
                let found = windows.read(bytes, range.clone()).unwrap();
                assert!(found == &content[begin + range.start..begin + range.end], "{tensor}: {range:?}");
            }
        }
        let all = Bytes::of_file(&file, 5..content.len());
        assert_eq!(windows.read(all, 0..all.len()).unwrap(), &content[5..], "more than a window at a time");
        assert_eq!(&*all.slice(3..10).read().unwrap(), &content[8..15]);
        assert_eq!(Windows::default().read(content[..].into(), 3..5).unwrap(), &content[3..5]);
    }

    /// Of a mapped file this was the end of the process, by SIGBUS.
    #[test]
    fn a_file_that_is_cut_short_is_an_error_that_names_it() {
        let (named, file) = file(&[7; 10_000]);
        let bytes = Bytes::of_file(&file, 0..10_000);
        let mut windows = Windows::default();
        assert_eq!(windows.read(bytes, 0..10).unwrap(), [7; 10]);
        file.check_unchanged().unwrap();
        named.as_file().set_len(4096).unwrap();
        let error = bytes.read().unwrap_err().to_string();
        assert!(error.contains("cut short") && error.contains(&*named.path().to_string_lossy()), "{error}");
        assert!(Windows::default().read(bytes, 4090..4100).is_err());
        assert!(file.check_unchanged().is_err());
    }

    #[test]
    fn a_file_that_is_written_over_is_seen() {
        let (named, file) = file(&[7; 100]);
        // Clocks of file systems tick every few milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(named.path(), [8; 100]).unwrap();
        let error = file.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("written to while it was read"), "{error}");
    }
}

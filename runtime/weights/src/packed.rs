//! A file of packed weights, opened: [`monomorph_abi::packed_file`] says what it is. A device maps its
//! arrays; here it is only read.

use crate::WeightsError;
use crate::file::WeightsFile;
use monomorph_abi::packed_file::{AGAIN, Array, Beside, Header, MAGIC, PREFIX, Prefix};
use std::fs::File;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// Bytes read at a time where they are only looked at.
const CHUNK: u64 = 1 << 20;

/// Whether a file that begins with these bytes is one of packed weights.
pub(crate) fn is_one(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// The digest of bytes in a file of packed weights.
pub fn digest(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// An opened file of packed weights.
#[derive(Debug)]
pub struct Packed {
    file: WeightsFile,
    header: Header,
}

impl Packed {
    /// The bytes of a file of packed weights; `None` of any other, or of none.
    pub fn look(path: &Path) -> Option<u64> {
        let file = WeightsFile::open(path).ok()?;
        is_one(&file.beginning(MAGIC.len()).ok()?).then(|| file.bytes())
    }

    /// Opens a file and checks all of it but its arrays.
    pub(crate) fn open(path: &Path) -> Result<Packed, WeightsError> {
        let file = WeightsFile::open(path)?;
        let wrong = |what: String| WeightsError::malformed(path, what);
        let beginning = file.beginning(PREFIX)?;
        let beginning = beginning.first_chunk().filter(|_| is_one(&beginning));
        let beginning = beginning.ok_or_else(|| wrong("is no file of packed weights".to_owned()))?;
        let prefix = Prefix::decode(beginning, file.bytes()).map_err(wrong)?;
        let mut bytes = vec![0; usize::try_from(prefix.header).unwrap_or(usize::MAX) - PREFIX];
        file.read_at(PREFIX as u64, &mut bytes)?;
        if digest(&bytes) != prefix.digest {
            return Err(wrong(format!("has a damaged header: its digest is another; {AGAIN}")));
        }
        let header = Header::decode(&bytes, &prefix).map_err(wrong)?;
        let packed = Packed { file, header };
        packed.check_texts()?;
        Ok(packed)
    }

    /// Checks the digests of what was kept of checkpoint files, and of files beside them.
    fn check_texts(&self) -> Result<(), WeightsError> {
        let pieces = self.header.sources.iter().flat_map(|it| it.pieces.iter().map(move |piece| (it, piece)));
        let pieces = pieces.map(|(it, piece)| (&it.name, &piece.place, piece.digest));
        let beside = self.header.beside.iter().map(|it| (&it.name, &it.place, it.digest));
        pieces
            .chain(beside)
            .try_for_each(|(name, place, digest)| self.check(place, digest, || format!("its copy of {name}")))
    }

    /// Compares the digest of a range with the one that it should have.
    fn check(&self, place: &Range<u64>, wanted: u64, what: impl Fn() -> String) -> Result<(), WeightsError> {
        let (mut hasher, mut chunk, mut at) = (XxHash3_64::new(), Vec::new(), place.start);
        while at < place.end {
            chunk.resize((place.end - at).min(CHUNK) as usize, 0);
            self.file.read_at(at, &mut chunk)?;
            hasher.write(&chunk);
            at += chunk.len() as u64;
        }
        let found = hasher.finish();
        if found == wanted {
            return Ok(());
        }
        Err(WeightsError::malformed(
            self.path(),
            format!(
                "is damaged: {} (bytes {place:?}) has digest {found:016x} and should have {wanted:016x}; {AGAIN}",
                what()
            ),
        ))
    }

    /// Compares the digest of array `at` with the one that it had when it was packed.
    ///
    /// # Errors
    /// When it is another, or the file cannot be read.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn check_array(&self, at: usize) -> Result<(), WeightsError> {
        let array = &self.header.arrays[at];
        self.check(&array.place, array.digest, || format!("array {at} ({})", array.name))
    }

    /// What each file that it was packed from is now.
    pub(crate) fn kept(&self) -> impl Iterator<Item = WeightsFile> {
        self.header.sources.iter().map(|source| self.file.kept(source.clone()))
    }

    /// A file that was beside the weights.
    pub(crate) fn beside(&self, name: &str) -> Option<SideFile<'_>> {
        let found = self.header.beside.iter().find(|it| it.name == name)?;
        Some(SideFile { path: self.path().join(name), kept: Some((&self.file, found)) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file, for those who map it.
    pub fn file(&self) -> &File {
        self.file.file()
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// What is in it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many bytes its arrays have together.
    pub fn array_bytes(&self) -> u64 {
        self.header.arrays.iter().map(|array| array.place.end - array.place.start).sum()
    }

    /// Its arrays, in the order in which they are loaded.
    pub fn arrays(&self) -> &[Array] {
        &self.header.arrays
    }
}

/// A file beside the weights: in their directory, or kept in a file of packed weights.
#[derive(Debug)]
pub struct SideFile<'a> {
    path: PathBuf,
    kept: Option<(&'a WeightsFile, &'a Beside)>,
}

impl SideFile<'_> {
    pub(crate) fn at(path: PathBuf) -> SideFile<'static> {
        SideFile { path, kept: None }
    }

    /// Its path; of one that is kept its name behind that of the file of packed weights.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let Some((file, beside)) = self.kept else { return std::fs::read(&self.path) };
        // Within the file: that was checked when it was opened.
        let mut bytes = vec![0; (beside.place.end - beside.place.start) as usize];
        file.read_at(beside.place.start, &mut bytes).map_err(std::io::Error::other)?;
        Ok(bytes)
    }
}

//! A file of packed weights, opened: [`monomorph_abi::packed_file`] says what it is. A device maps its
//! arrays; here it is only read.

use crate::WeightsError;
use crate::entry::{Encoding, Entry};
use crate::file::WeightsFile;
use monomorph_abi::packed_file::{AGAIN, Array, Header, Kept, MAGIC, PREFIX, Piece, Prefix};
use monomorph_formats::Format;
use std::fs::File;
use std::hash::Hasher;
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

/// What the beginning of a file of packed weights says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLook {
    /// How long it is.
    pub bytes: u64,
    /// Whether its weights are made up.
    pub made_up: bool,
}

/// An opened file of packed weights.
#[derive(Debug)]
pub struct Packed {
    file: WeightsFile,
    prefix: Prefix,
    header: Header,
}

impl Packed {
    /// Looks at the first bytes of a file of packed weights; `None` of any other, or of none. What cannot be
    /// right is for those to say who open it.
    pub fn look(path: &Path) -> Option<PackedLook> {
        let file = WeightsFile::open(path).ok()?;
        let (beginning, bytes) = (file.beginning(PREFIX).ok()?, file.bytes());
        let prefix = beginning.first_chunk().and_then(|it| Prefix::decode(it, bytes).ok());
        is_one(&beginning).then(|| PackedLook { bytes, made_up: prefix.is_some_and(|it| it.made_up) })
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
        let packed = Packed { file, prefix, header };
        for (name, piece) in packed.header.kept() {
            packed.check(piece, || format!("its copy of {name}"))?;
        }
        Ok(packed)
    }

    /// Compares the digest of bytes with the one that they should have.
    fn check(&self, piece: &Piece, what: impl Fn() -> String) -> Result<(), WeightsError> {
        let Piece { place, digest: wanted } = piece;
        let (mut hasher, mut chunk, mut at) = (XxHash3_64::new(), Vec::new(), place.start);
        while at < place.end {
            chunk.resize((place.end - at).min(CHUNK) as usize, 0);
            self.file.read_at(at, &mut chunk)?;
            hasher.write(&chunk);
            at += chunk.len() as u64;
        }
        let found = hasher.finish();
        if found == *wanted {
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
        self.check(&array.piece, || format!("array {at} ({})", array.name))
    }

    /// The header of the GGUF file that it was packed from, if it was one.
    pub(crate) fn gguf(&self) -> Option<WeightsFile> {
        let (piece, source) = (self.header.gguf.as_ref()?, self.header.sources.first()?);
        Some(self.file.kept_header(piece.place.clone(), source.bytes))
    }

    /// The tensors that are kept as they were, of file 0, which is this.
    pub(crate) fn tensors(&self) -> Result<Vec<Entry>, WeightsError> {
        let entry = |kept: &Kept| {
            let Kept { name, format, shape, piece: Piece { place, .. } } = kept;
            let shape: Option<Vec<usize>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
            let elements =
                |shape: &Vec<usize>| shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
            let bytes = |(format, shape): &(Format, Vec<usize>)| Some(format.bytes(elements(shape)?)? as u64);
            let known = Format::from_name(format).zip(shape);
            let known = known.filter(|known| bytes(known) == Some(place.end - place.start));
            let (format, shape) = known.ok_or_else(|| {
                let what =
                    format!("keeps tensor `{name}` at {place:?}, which is no {format} {:?}", kept.shape);
                WeightsError::malformed(self.path(), format!("{what}; {AGAIN}"))
            })?;
            // Within the file: that was checked when it was opened.
            let bytes = place.start as usize..place.end as usize;
            Ok(Entry { name: name.clone(), shape, encoding: Encoding::Known(format), file: 0, bytes })
        };
        self.header.tensors.iter().map(entry).collect()
    }

    /// A file that was beside the weights.
    pub(crate) fn beside(&self, name: &str) -> Option<SideFile<'_>> {
        let found = self.header.beside.iter().find(|it| it.name == name)?;
        Some(SideFile { path: self.path().join(name), kept: Some((&self.file, &found.piece)) })
    }

    /// Whether its weights are made up.
    pub fn is_made_up(&self) -> bool {
        self.prefix.made_up
    }

    /// The file, as one of a checkpoint.
    pub(crate) fn weights_file(&self) -> WeightsFile {
        self.file.clone()
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
        self.header.arrays.iter().map(|array| array.piece.place.end - array.piece.place.start).sum()
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
    kept: Option<(&'a WeightsFile, &'a Piece)>,
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
        let Some((file, Piece { place, .. })) = self.kept else { return std::fs::read(&self.path) };
        // Within the file: that was checked when it was opened.
        let mut bytes = vec![0; (place.end - place.start) as usize];
        file.read_at(place.start, &mut bytes).map_err(std::io::Error::other)?;
        Ok(bytes)
    }
}

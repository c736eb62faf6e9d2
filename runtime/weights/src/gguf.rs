//! The GGUF reader: versions 2 and 3, little endian.
//!
//! A cursor that cannot leave the file walks header, metadata and tensor table once; the tensors' byte ranges
//! are then checked against the file and against each other.

use crate::WeightsError;
use crate::entry::{Encoding, Entry as TensorEntry};
use crate::file::WeightsFile;
use crate::ggml::ggml_type;
use crate::metadata::{Entry, Metadata, MetadataType, little_endian};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The first four bytes of a GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data if `general.alignment` is missing.
const DEFAULT_ALIGNMENT: usize = 32;

/// Most dimensions, as in ggml.
const MAX_DIMENSIONS: usize = 4;

/// Smallest metadata entry: key length, one byte of key, type, one byte of value.
const MIN_METADATA_BYTES: usize = 8 + 1 + 4 + 1;

/// Smallest tensor entry: name length, one byte of name, dimension count, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 4 + 8;

/// Bytes of the file to read at first; four times as many are read if its header is longer.
const BEGINNING: usize = 4 << 20;

/// Most bytes of a header; a vocabulary of a quarter of a million tokens takes 10 MB.
const MAX_HEADER: usize = 256 << 20;

/// Reads the header of a file: its metadata and its tensors, as entries of file `index`.
pub(crate) fn read(file: &WeightsFile, index: usize) -> Result<(Metadata, Vec<TensorEntry>), WeightsError> {
    let mut most = BEGINNING;
    loop {
        let header = Arc::new(file.beginning(most)?);
        let [size, whole] =
            [file.beginning_bytes(), file.bytes()].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        let mut cursor = Cursor { path: file.path(), bytes: &header, size, whole, at: 0, beyond: None };
        match (read_header(&mut cursor, &header, index), cursor.beyond) {
            (Err(_), Some(wanted)) if wanted > MAX_HEADER => {
                return Err(cursor.error(format!("has a header of more than {MAX_HEADER} bytes")));
            }
            (Err(_), Some(wanted)) => most = wanted.max(4 * most).min(MAX_HEADER),
            (read, _) => return read,
        }
    }
}

/// Reads a header from the cursor, which holds `header` bytes of the file.
fn read_header(
    cursor: &mut Cursor,
    header: &Arc<Vec<u8>>,
    file: usize,
) -> Result<(Metadata, Vec<TensorEntry>), WeightsError> {
    let (metadata_count, tensor_count) = read_counts(cursor)?;

    let mut entries = HashMap::with_capacity(metadata_count);
    for index in 0..metadata_count {
        let key = cursor.string(&format!("key of metadata entry {index}"))?;
        let entry = read_entry(cursor, key)?;
        if entries.insert(key.to_owned(), entry).is_some() {
            return Err(cursor.error(format!("metadata `{key}` occurs twice")));
        }
    }
    let metadata = Metadata { path: cursor.path.to_owned(), header: Arc::clone(header), entries };

    let alignment = match metadata.u32("general.alignment")? {
        None => DEFAULT_ALIGNMENT,
        Some(alignment) if alignment.is_power_of_two() => alignment as usize,
        Some(alignment) => {
            return Err(
                cursor.error(format!("`general.alignment` is {alignment}, which is not a power of two"))
            );
        }
    };

    let mut tensors = Vec::with_capacity(tensor_count);
    let mut names = HashSet::with_capacity(tensor_count);
    for index in 0..tensor_count {
        let (tensor, name) = read_tensor(cursor, index, alignment, file)?;
        if !names.insert(name) {
            return Err(cursor.error(format!("tensor `{name}` occurs twice")));
        }
        tensors.push(tensor);
    }
    place(cursor, &mut tensors, alignment)?;
    Ok((metadata, tensors))
}

/// Reads magic, version and counts: (metadata entries, tensors).
fn read_counts(cursor: &mut Cursor) -> Result<(usize, usize), WeightsError> {
    let magic = cursor.take(4, "magic")?;
    if magic != MAGIC {
        return Err(cursor.error("is not a GGUF file: it does not begin with `GGUF`"));
    }
    match cursor.u32("version")? {
        2 | 3 => {}
        version if (1..=0xffff).contains(&version.swap_bytes()) && version > 0xffff => {
            return Err(cursor.error("is a big-endian GGUF file; only little-endian ones are read"));
        }
        version => {
            return Err(cursor.error(format!("is GGUF version {version}; versions 2 and 3 are read")));
        }
    }
    let tensors = cursor.count("tensor count", MIN_TENSOR_BYTES)?;
    let metadata = cursor.count("metadata count", MIN_METADATA_BYTES)?;
    Ok((metadata, tensors))
}

fn read_entry(cursor: &mut Cursor, key: &str) -> Result<Entry, WeightsError> {
    let kind = read_type(cursor, key)?;
    if kind != MetadataType::Array {
        return Ok(Entry { kind, count: None, bytes: read_value(cursor, key, kind)? });
    }
    let kind = read_type(cursor, key)?;
    if kind == MetadataType::Array {
        return Err(cursor.error(format!("metadata `{key}` is an array of arrays, which is not read")));
    }
    let least = kind.bytes().unwrap_or(8);
    let count = cursor.count(&format!("length of metadata `{key}`"), least)?;
    let start = cursor.at;
    match kind.bytes() {
        // `count` was checked against the rest of the file, so the product cannot overflow.
        Some(bytes) if kind != MetadataType::Bool => {
            cursor.take(count * bytes, &format!("metadata `{key}`"))?;
        }
        _ => {
            for _ in 0..count {
                read_value(cursor, key, kind)?;
            }
        }
    }
    Ok(Entry { kind, count: Some(count), bytes: start..cursor.at })
}

fn read_type(cursor: &mut Cursor, key: &str) -> Result<MetadataType, WeightsError> {
    let number = cursor.u32_in("type of metadata", key)?;
    MetadataType::from_number(number)
        .ok_or_else(|| cursor.error(format!("metadata `{key}` has the unknown type {number}")))
}

fn read_value(
    cursor: &mut Cursor,
    key: &str,
    kind: MetadataType,
) -> Result<std::ops::Range<usize>, WeightsError> {
    match kind.bytes() {
        Some(length) => {
            let start = cursor.at;
            let value = cursor.take_in(length, "metadata", key)?;
            if kind == MetadataType::Bool && value[0] > 1 {
                return Err(cursor.error(format!("metadata `{key}` is a bool of value {}", value[0])));
            }
            Ok(start..cursor.at)
        }
        None => {
            let length = cursor.string_in("metadata", key)?.len();
            Ok(cursor.at - length..cursor.at)
        }
    }
}

/// Reads one row of the tensor table. `start` is still relative to the data section.
fn read_tensor<'a>(
    cursor: &mut Cursor<'a>,
    index: usize,
    alignment: usize,
    file: usize,
) -> Result<(TensorEntry, &'a str), WeightsError> {
    let name = cursor.string(&format!("name of tensor {index}"))?;
    if name.is_empty() {
        return Err(cursor.error(format!("tensor {index} has no name")));
    }
    let dimensions = cursor.u32_in("dimension count of tensor", name)? as usize;
    if dimensions > MAX_DIMENSIONS {
        return Err(cursor.error(format!(
            "tensor `{name}` has {dimensions} dimensions; at most {MAX_DIMENSIONS} are possible"
        )));
    }
    let mut shape = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        let extent = cursor.u64_in("dimensions of tensor", name)?;
        shape.push(
            usize::try_from(extent).map_err(|_| cursor.error(format!("tensor `{name}` is too large")))?,
        );
    }
    let innermost = shape.first().copied().unwrap_or(1);
    // GGUF puts the innermost dimension first; here, it is always last.
    shape.reverse();

    let number = cursor.u32_in("type of tensor", name)?;
    let offset = cursor.u64_in("offset of tensor", name)?;
    let (encoding, length) = match ggml_type(number) {
        None => (Encoding::Unsupported(format!("ggml type {number}")), 0),
        Some(kind) => {
            if innermost % kind.elements != 0 {
                return Err(cursor.error(format!(
                    "tensor `{name}` has rows of {innermost} elements, which do not fill {} blocks of {}",
                    kind.name, kind.elements
                )));
            }
            let length = shape
                .iter()
                .try_fold(1, |product: usize, &extent| product.checked_mul(extent))
                .and_then(|elements| (elements / kind.elements).checked_mul(kind.bytes))
                .ok_or_else(|| {
                    cursor.error(format!("tensor `{name}` of shape {shape:?} is larger than memory can be"))
                })?;
            let encoding = match kind.format {
                Some(format) => Encoding::Known(format),
                None => Encoding::Unsupported(format!("{} (ggml type {number})", kind.name)),
            };
            (encoding, length)
        }
    };
    let start =
        usize::try_from(offset).ok().filter(|start| start.is_multiple_of(alignment)).ok_or_else(|| {
            cursor.error(format!("tensor `{name}` has offset {offset}, which is not aligned to {alignment}"))
        })?;
    Ok((
        TensorEntry {
            name: name.to_owned(),
            shape,
            encoding,
            file,
            bytes: start..start.saturating_add(length),
        },
        name,
    ))
}

/// Turns offsets within the data section into ranges of the file, and checks them against the file and each
/// other.
fn place(cursor: &Cursor, tensors: &mut [TensorEntry], alignment: usize) -> Result<(), WeightsError> {
    let size = cursor.whole;
    // A file without tensors may end before its data section.
    let data = cursor.at.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
    for tensor in &mut *tensors {
        let start = data.saturating_add(tensor.bytes.start);
        let end = data.saturating_add(tensor.bytes.end);
        if end > size {
            return Err(cursor.error(format!(
                "tensor `{}` lies at bytes {start}..{end}, and the file ends at {size}",
                tensor.name
            )));
        }
        tensor.bytes = start..end;
    }
    let mut order: Vec<&TensorEntry> = tensors.iter().filter(|tensor| !tensor.bytes.is_empty()).collect();
    order.sort_by_key(|tensor| tensor.bytes.start);
    for pair in order.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            return Err(cursor.error(format!(
                "tensors `{}` and `{}` overlap at byte {}",
                pair[0].name, pair[1].name, pair[1].bytes.start
            )));
        }
    }
    Ok(())
}

/// A read position that cannot leave the file.
struct Cursor<'a> {
    path: &'a Path,
    /// The bytes read so far, from the start of the file.
    bytes: &'a [u8],
    /// Bytes of the file that the header may be in.
    size: usize,
    /// Size of the file.
    whole: usize,
    at: usize,
    /// The end of a read that lay in the file but past `bytes`.
    beyond: Option<usize>,
}

impl<'a> Cursor<'a> {
    fn error(&self, what: impl Into<String>) -> WeightsError {
        WeightsError::malformed(self.path, what)
    }

    fn cut_short(&self, length: usize, what: &str) -> WeightsError {
        self.error(format!(
            "the file ends inside {what}: {length} bytes needed at {}, and the file ends at {}",
            self.at, self.size
        ))
    }

    fn advance(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end);
        match taken {
            Some(_) => self.at = end,
            None if end <= self.size => self.beyond = Some(end),
            None => {}
        }
        taken
    }

    fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], WeightsError> {
        self.advance(length).ok_or_else(|| self.cut_short(length, what))
    }

    /// As `take`, but formats the description only on error: for calls made once per element.
    fn take_in(&mut self, length: usize, what: &str, name: &str) -> Result<&'a [u8], WeightsError> {
        self.advance(length).ok_or_else(|| self.cut_short(length, &format!("{what} `{name}`")))
    }

    fn u32(&mut self, what: &str) -> Result<u32, WeightsError> {
        Ok(u32::from_le_bytes(little_endian(self.take(4, what)?)))
    }

    fn u32_in(&mut self, what: &str, name: &str) -> Result<u32, WeightsError> {
        Ok(u32::from_le_bytes(little_endian(self.take_in(4, what, name)?)))
    }

    fn u64_in(&mut self, what: &str, name: &str) -> Result<u64, WeightsError> {
        Ok(u64::from_le_bytes(little_endian(self.take_in(8, what, name)?)))
    }

    /// Reads the count of entries that take at least `least` bytes each, and refuses it if the rest of the
    /// file is too short.
    fn count(&mut self, what: &str, least: usize) -> Result<usize, WeightsError> {
        let count = u64::from_le_bytes(little_endian(self.take(8, what)?));
        let possible = (self.size - self.at) / least;
        usize::try_from(count).ok().filter(|&count| count <= possible).ok_or_else(|| {
            self.error(format!("{what} is {count}, and what is left of the file can hold {possible} at most"))
        })
    }

    fn string(&mut self, what: &str) -> Result<&'a str, WeightsError> {
        let length = u64::from_le_bytes(little_endian(self.take(8, what)?));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        std::str::from_utf8(self.take(length, what)?).map_err(|_| self.error(format!("{what} is not UTF-8")))
    }

    /// As `string`, for calls made once per element.
    fn string_in(&mut self, what: &str, name: &str) -> Result<&'a str, WeightsError> {
        let length = u64::from_le_bytes(little_endian(self.take_in(8, what, name)?));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        std::str::from_utf8(self.take_in(length, what, name)?)
            .map_err(|_| self.error(format!("{what} `{name}` is not UTF-8")))
    }
}

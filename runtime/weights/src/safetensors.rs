//! Safetensors files, read through the `safetensors` crate, and the index of a sharded checkpoint.

use crate::WeightsError;
use crate::entry::{Encoding, Entry};
use crate::file::WeightsFile;
use crate::metadata::little_endian;
use ::safetensors::tensor::Metadata as SafeTensorsMetadata;
use ::safetensors::{Dtype, SafeTensorError, SafeTensors};
use monomorph_formats::Format;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Component, Path};

/// Size of the length that precedes the header.
const LENGTH_BYTES: usize = 8;

/// Largest header that the `safetensors` crate reads, in bytes.
const MAX_HEADER: usize = 100_000_000;

/// The tensors of a file, as entries of file `index`, in the order of their data.
pub(crate) fn read(file: &WeightsFile, index: usize) -> Result<Vec<Entry>, WeightsError> {
    let (path, size) = (file.path(), usize::try_from(file.bytes()).unwrap_or(usize::MAX));
    let (header, data) = read_header(file, size)?;
    check_header(path, &header[LENGTH_BYTES..], data)?;
    let unsound = |error: &dyn std::fmt::Display| {
        WeightsError::malformed(path, format!("is not a sound safetensors file of {size} bytes: {error}"))
    };
    // Given the header alone, it checks everything, and only then misses the tensors' bytes, whose number is
    // compared here.
    match SafeTensors::read_metadata(&header) {
        Ok(_) | Err(SafeTensorError::MetadataIncompleteBuffer) => {}
        Err(error) => return Err(unsound(&error)),
    }
    let metadata: SafeTensorsMetadata =
        serde_json::from_slice(&header[LENGTH_BYTES..]).map_err(|error| unsound(&error))?;
    if metadata.data_len() != data {
        return Err(unsound(&SafeTensorError::MetadataIncompleteBuffer));
    }
    let start = header.len();
    metadata
        .offset_keys()
        .into_iter()
        .map(|name| {
            let info = metadata.info(&name).ok_or_else(|| {
                WeightsError::malformed(path, format!("tensor `{name}` has no description"))
            })?;
            let range = start + info.data_offsets.0..start + info.data_offsets.1;
            if range.start > range.end || range.end > size {
                return Err(WeightsError::malformed(
                    path,
                    format!("tensor `{name}` lies at bytes {range:?}, and the file ends at {size}"),
                ));
            }
            let mut shape = info.shape.clone();
            let encoding = match info.dtype {
                Dtype::F32 => Encoding::Known(Format::F32),
                Dtype::F16 => Encoding::Known(Format::F16),
                Dtype::BF16 => Encoding::Known(Format::Bf16),
                Dtype::F8_E4M3 => Encoding::Known(Format::Fp8E4m3),
                Dtype::U8 => nibbles(&mut shape),
                other => Encoding::Unsupported(format!("{other:?}")),
            };
            Ok(Entry { shape, name, encoding, file: index, bytes: range })
        })
        .collect()
}

/// Reads a matrix of bytes as nvfp4 codes, two per byte, so that its shape counts elements: safetensors has
/// no type for them. (The checkpoint must guarantee that it is one; only a quant spec that says nvfp4 asks
/// for it as such.)
fn nibbles(shape: &mut [usize]) -> Encoding {
    if let [_, bytes] = shape
        && let Some(elements) = bytes.checked_mul(2).filter(|it| Format::Nvfp4.bytes(*it).is_some())
    {
        *bytes = elements;
        return Encoding::Known(Format::Nvfp4);
    }
    Encoding::Unsupported("U8".to_owned())
}

/// The file up to the end of its header, and the number of bytes that follow.
fn read_header(file: &WeightsFile, size: usize) -> Result<(Vec<u8>, usize), WeightsError> {
    let malformed = |what: String| WeightsError::malformed(file.path(), what);
    if size < LENGTH_BYTES {
        return Err(malformed(format!("a file of {size} bytes is not a safetensors file")));
    }
    let length = u64::from_le_bytes(little_endian(&file.beginning(LENGTH_BYTES)?));
    let fits = |length: &usize| *length <= size - LENGTH_BYTES;
    let Some(length) = usize::try_from(length).ok().filter(fits) else {
        return Err(malformed(format!("the header is said to be {length} bytes, and the file has {size}")));
    };
    if length > MAX_HEADER {
        return Err(malformed(format!("has a header of {length} bytes, and {MAX_HEADER} are the most")));
    }
    Ok((file.beginning(LENGTH_BYTES + length)?, size - LENGTH_BYTES - length))
}

/// Checks what the `safetensors` crate does not: duplicate names (it keeps the last), and offsets so large
/// that its own sums overflow. `data` bytes follow the header.
fn check_header(path: &Path, header: &[u8], data: usize) -> Result<(), WeightsError> {
    let malformed = |what: String| WeightsError::malformed(path, what);
    let header = std::str::from_utf8(header)
        .map_err(|error| malformed(format!("the header is not UTF-8: {error}")))?;
    let data = data as u64;
    let mut deserializer = serde_json::Deserializer::from_str(header);
    deserializer
        .deserialize_map(HeaderCheck { data })
        .map_err(|error| malformed(format!("the header is wrong: {error}")))
}

struct HeaderCheck {
    /// Number of bytes after the header.
    data: u64,
}

/// The only part of a tensor's description that is read here.
#[derive(serde::Deserialize)]
struct Offsets {
    data_offsets: (u64, u64),
}

impl<'de> Visitor<'de> for HeaderCheck {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a map from tensor names to their descriptions")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        use serde::de::Error;
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                let Offsets { data_offsets: (start, end) } = map.next_value()?;
                if start > end || end > self.data {
                    return Err(A::Error::custom(format_args!(
                        "tensor `{name}` has offsets {start}..{end}, and {} bytes of data follow the header",
                        self.data
                    )));
                }
            }
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format_args!("`{name}` occurs twice")));
            }
        }
        Ok(())
    }
}

/// The shards named by an index (`model.safetensors.index.json`), each with the tensors it should contain.
pub(crate) fn read_index(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, WeightsError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read(path).map_err(|error| WeightsError::io(path, error))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| WeightsError::malformed(path, format!("is not a safetensors index: {error}")))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, shard) in index.weight_map {
        if !is_file_name(&shard) {
            return Err(WeightsError::malformed(
                path,
                format!(
                    "tensor `{tensor}` is said to be in `{shard}`, which is not a file name beside the index"
                ),
            ));
        }
        shards.entry(shard).or_default().insert(tensor);
    }
    if shards.is_empty() {
        return Err(WeightsError::malformed(path, "names no tensors"));
    }
    Ok(shards)
}

/// Whether a name is a plain file name, of one component.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
        && !name.contains(['\\', '\0'])
}

//! A GGUF file in which every tensor has its place before the first is written. What is said about the model
//! is what the file says that it is made from.

use super::shards::{Shards, Stored};
use monomorph_weights::{Metadata, ggml_number};
use std::path::Path;

/// The name of the file.
pub const FILE: &str = "model.gguf";

/// Says of which kind most tensors are. Readers guess it where it is missing, and the old file's is wrong.
const KIND: &str = "general.file_type";
/// The version of the formats of small integers; those of today are 2.
const VERSION: &str = "general.quantization_version";
/// ggml's number for a u32.
const U32: u32 = 4;
/// Alignment of tensors where the metadata says nothing.
const ALIGNMENT: u64 = 32;

/// Writes the header of a file of `tensors` that says what `metadata` does, and lays out the tensors.
pub fn create(directory: &Path, metadata: &Metadata, tensors: &[Stored]) -> Result<Shards, String> {
    let alignment = metadata.u32("general.alignment").map_err(|error| error.to_string())?;
    let alignment = alignment.map_or(ALIGNMENT, u64::from);
    let mut entries = metadata.stored();
    entries.retain(|(key, _)| ![KIND, VERSION].contains(key));
    entries.push((VERSION, [U32.to_le_bytes(), 2u32.to_le_bytes()].concat()));

    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        string(&mut header, key);
        header.extend(value);
    }
    let (mut places, mut end) = (Vec::new(), 0u64);
    for tensor in tensors {
        let number = ggml_number(tensor.format()).ok_or_else(|| {
            format!("tensor `{}` would be {}, which GGUF files do not hold", tensor.name(), tensor.format())
        })?;
        string(&mut header, tensor.name());
        header.extend((tensor.shape().len() as u32).to_le_bytes());
        header.extend(tensor.shape().iter().rev().flat_map(|extent| (*extent as u64).to_le_bytes()));
        header.extend(number.to_le_bytes());
        header.extend(end.to_le_bytes());
        places.push((tensor.name().to_owned(), end, tensor.bytes()));
        end = (end + tensor.bytes()).next_multiple_of(alignment);
    }
    header.resize((header.len() as u64).next_multiple_of(alignment) as usize, 0);
    Shards::one(directory.join(FILE), &header, places, end)
}

fn string(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

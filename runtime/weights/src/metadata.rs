//! GGUF's key-value metadata: checked once when the file is opened, decoded on access.

use crate::WeightsError;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The type of a metadata value, in the order of their numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum MetadataType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl MetadataType {
    /// The type with this number in a file.
    pub(crate) fn from_number(number: u32) -> Option<MetadataType> {
        use MetadataType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64].get(number as usize).copied()
    }

    /// Bytes of one value; `None` for strings and arrays, whose length is in the file.
    pub(crate) fn bytes(self) -> Option<usize> {
        use MetadataType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Str | Array => None,
        }
    }

    /// The type's name in errors.
    pub fn name(self) -> &'static str {
        use MetadataType::*;
        match self {
            U8 => "u8",
            I8 => "i8",
            U16 => "u16",
            I16 => "i16",
            U32 => "u32",
            I32 => "i32",
            F32 => "f32",
            Bool => "bool",
            Str => "string",
            Array => "array",
            U64 => "u64",
            I64 => "i64",
            F64 => "f64",
        }
    }
}

/// The location of a value in the file. For an array, `kind` is its elements' type.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: MetadataType,
    /// Number of elements; `None` for a single value.
    pub(crate) count: Option<usize>,
    /// The value's bytes: for a string without its length, for an array all elements as stored.
    pub(crate) bytes: Range<usize>,
}

/// The metadata of a GGUF file. Getters return `None` for a missing key, and an error naming the key and both
/// types for a value of another type.
#[derive(Debug)]
pub struct Metadata {
    pub(crate) path: PathBuf,
    /// The file up to the end of the tensor table.
    pub(crate) header: Arc<Vec<u8>>,
    pub(crate) entries: HashMap<String, Entry>,
}

impl Metadata {
    /// Every key, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Every key in the order of the file, with what follows it there: type and value.
    pub fn stored(&self) -> Vec<(&str, Vec<u8>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(_, entry)| entry.bytes.start);
        let stored = |entry: &Entry| {
            let mut bytes = Vec::new();
            if let Some(count) = entry.count {
                bytes.extend((MetadataType::Array as u32).to_le_bytes());
                bytes.extend((entry.kind as u32).to_le_bytes());
                bytes.extend((count as u64).to_le_bytes());
            } else {
                bytes.extend((entry.kind as u32).to_le_bytes());
                if entry.kind == MetadataType::Str {
                    bytes.extend((entry.bytes.len() as u64).to_le_bytes());
                }
            }
            bytes.extend(&self.header[entry.bytes.clone()]);
            bytes
        };
        entries.into_iter().map(|(key, entry)| (key.as_str(), stored(entry))).collect()
    }

    /// The type of a value; arrays are [`MetadataType::Array`].
    pub fn kind(&self, key: &str) -> Option<MetadataType> {
        let entry = self.entries.get(key)?;
        Some(if entry.count.is_some() { MetadataType::Array } else { entry.kind })
    }

    /// A string.
    ///
    /// # Errors
    /// When the value is not a string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        let Some(bytes) = self.single(key, &[MetadataType::Str])? else { return Ok(None) };
        self.utf8(key, bytes.1).map(Some)
    }

    /// An unsigned number, stored as an integer of any width.
    ///
    /// # Errors
    /// When the value is not an integer, is negative, or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, WeightsError> {
        use MetadataType::*;
        let Some((kind, bytes)) = self.single(key, &[U32, U8, U16, U64, I8, I16, I32, I64])? else {
            return Ok(None);
        };
        let value = integer(kind, bytes);
        u32::try_from(value)
            .map(Some)
            .map_err(|_| self.error(key, &format!("is {value}, which is not a u32")))
    }

    /// A single-precision number.
    ///
    /// # Errors
    /// When the value is not an f32.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, WeightsError> {
        Ok(self.single(key, &[MetadataType::F32])?.map(|(_, bytes)| f32::from_le_bytes(little_endian(bytes))))
    }

    /// A boolean.
    ///
    /// # Errors
    /// When the value is not a bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        Ok(self.single(key, &[MetadataType::Bool])?.map(|(_, bytes)| bytes.first() == Some(&1)))
    }

    /// An array of strings.
    ///
    /// # Errors
    /// When the value is not an array of strings.
    pub fn strs(&self, key: &str) -> Result<Option<Vec<&str>>, WeightsError> {
        let Some((count, mut bytes)) = self.array(key, MetadataType::Str)? else { return Ok(None) };
        let mut strings = Vec::with_capacity(count);
        for _ in 0..count {
            // Lengths were checked when the file was opened; if it has been rewritten since, this is still an
            // error.
            let (string, rest) = bytes
                .split_at_checked(8)
                .and_then(|(length, rest)| {
                    rest.split_at_checked(usize::try_from(u64::from_le_bytes(little_endian(length))).ok()?)
                })
                .ok_or_else(|| self.error(key, "changed while it was being read"))?;
            strings.push(self.utf8(key, string)?);
            bytes = rest;
        }
        Ok(Some(strings))
    }

    /// An array of i32.
    ///
    /// # Errors
    /// When the value is not an array of i32.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, WeightsError> {
        Ok(self.array(key, MetadataType::I32)?.map(|(_, bytes)| {
            bytes.chunks_exact(4).map(|chunk| i32::from_le_bytes(little_endian(chunk))).collect()
        }))
    }

    /// An array of unsigned numbers, stored as u32 or i32.
    ///
    /// # Errors
    /// When the value is neither, or a number is negative.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, WeightsError> {
        let signed = self.entries.get(key).is_some_and(|entry| entry.kind == MetadataType::I32);
        let kind = if signed { MetadataType::I32 } else { MetadataType::U32 };
        let Some((_, bytes)) = self.array(key, kind)? else { return Ok(None) };
        let number = |chunk: &[u8]| match integer(kind, chunk) {
            value if value < 0 => Err(self.error(key, &format!("has {value}, which is not a u32"))),
            value => Ok(value as u32),
        };
        bytes.chunks_exact(4).map(number).collect::<Result<_, _>>().map(Some)
    }

    /// An array of bools.
    ///
    /// # Errors
    /// When the value is not an array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, WeightsError> {
        Ok(self.array(key, MetadataType::Bool)?.map(|(_, bytes)| bytes.iter().map(|it| *it != 0).collect()))
    }

    /// An array of f32.
    ///
    /// # Errors
    /// When the value is not an array of f32.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, WeightsError> {
        Ok(self.array(key, MetadataType::F32)?.map(|(_, bytes)| {
            bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(little_endian(chunk))).collect()
        }))
    }

    fn single(
        &self,
        key: &str,
        allowed: &[MetadataType],
    ) -> Result<Option<(MetadataType, &[u8])>, WeightsError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        if entry.count.is_some() || !allowed.contains(&entry.kind) {
            return Err(self.wrong_type(key, entry, allowed[0].name()));
        }
        Ok(Some((entry.kind, &self.header[entry.bytes.clone()])))
    }

    fn array(&self, key: &str, kind: MetadataType) -> Result<Option<(usize, &[u8])>, WeightsError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        match entry.count {
            Some(count) if entry.kind == kind => Ok(Some((count, &self.header[entry.bytes.clone()]))),
            _ => Err(self.wrong_type(key, entry, &format!("array of {}", kind.name()))),
        }
    }

    fn utf8<'a>(&self, key: &str, bytes: &'a [u8]) -> Result<&'a str, WeightsError> {
        std::str::from_utf8(bytes).map_err(|_| self.error(key, "is not UTF-8"))
    }

    fn wrong_type(&self, key: &str, entry: &Entry, expected: &str) -> WeightsError {
        let found = match entry.count {
            Some(_) => format!("array of {}", entry.kind.name()),
            None => entry.kind.name().to_owned(),
        };
        self.error(key, &format!("should be {expected} and is {found}"))
    }

    fn error(&self, key: &str, what: &str) -> WeightsError {
        WeightsError::malformed(&self.path, format!("metadata `{key}` {what}"))
    }
}

/// The first `N` bytes; zeros if there are fewer (every caller has checked that there are not).
pub(crate) fn little_endian<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

fn integer(kind: MetadataType, bytes: &[u8]) -> i128 {
    use MetadataType::*;
    match kind {
        U8 => u8::from_le_bytes(little_endian(bytes)).into(),
        I8 => i8::from_le_bytes(little_endian(bytes)).into(),
        U16 => u16::from_le_bytes(little_endian(bytes)).into(),
        I16 => i16::from_le_bytes(little_endian(bytes)).into(),
        U32 => u32::from_le_bytes(little_endian(bytes)).into(),
        I32 => i32::from_le_bytes(little_endian(bytes)).into(),
        U64 => u64::from_le_bytes(little_endian(bytes)).into(),
        I64 => i64::from_le_bytes(little_endian(bytes)).into(),
        F32 | F64 | Bool | Str | Array => 0,
    }
}

//! Checkpoints: tensors by name, mapped from GGUF and safetensors files.
//!
//! A reader believes nothing a file says: every count, offset and length is checked against the file
//! before it is used, and what is wrong is named.

use monomorph_formats::Format;
use std::path::{Path, PathBuf};

/// A tensor inside a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Outermost dimension first (a matrix is `[rows, columns]` = `[outputs, inputs]`), whatever order the file uses.
    pub shape: &'a [usize],
    /// How its elements are stored.
    pub format: Format,
    /// Exactly `format.bytes(shape.product())` bytes.
    pub bytes: &'a [u8],
}

/// Why a checkpoint was refused.
#[derive(Debug)]
pub enum WeightsError {
    /// The file cannot be opened, read or mapped.
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file contradicts itself or its format.
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The file is sound and is not the one this server was compiled for.
    Mismatch {
        /// Which.
        path: PathBuf,
        /// The tensor, and what was expected and found.
        what: String,
    },
}

impl std::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightsError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            WeightsError::Malformed { path, what } | WeightsError::Mismatch { path, what } => {
                write!(f, "{}: {what}", path.display())
            }
        }
    }
}

impl std::error::Error for WeightsError {}

/// An opened checkpoint: one GGUF file, or the safetensors files of a directory.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
}

impl Checkpoint {
    /// Opens a `.gguf` file, a `.safetensors` file, or a directory holding `model.safetensors` (or an index
    /// and its shards) beside `tokenizer.json` and friends.
    ///
    /// # Errors
    /// When nothing readable is there, or a file is malformed.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        Ok(Checkpoint { path: path.to_owned() })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

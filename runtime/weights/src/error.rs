//! Errors of opening and reading checkpoints.

use crate::guard::Shortage;
use std::path::{Path, PathBuf};

/// Why a checkpoint was refused.
#[derive(Debug)]
pub enum WeightsError {
    /// The file cannot be opened, read or mapped.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file contradicts itself or its format.
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The file is valid, but is not the one this server was compiled for.
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor, and what was expected and found.
        what: String,
    },
    /// The memory that it is loaded into is about to run out.
    Memory {
        /// The file.
        path: PathBuf,
        /// How much is left.
        shortage: Shortage,
    },
}

impl WeightsError {
    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> WeightsError {
        WeightsError::Malformed { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn mismatch(path: &Path, what: impl Into<String>) -> WeightsError {
        WeightsError::Mismatch { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> WeightsError {
        WeightsError::Io { path: path.to_owned(), error }
    }
}

impl std::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightsError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            WeightsError::Malformed { path, what } | WeightsError::Mismatch { path, what } => {
                write!(f, "{}: {what}", path.display())
            }
            WeightsError::Memory { shortage, .. } => shortage.fmt(f),
        }
    }
}

impl std::error::Error for WeightsError {}

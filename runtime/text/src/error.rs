//! Errors of tokenizers and templates.

use monomorph_weights::WeightsError;
use std::path::{Path, PathBuf};

/// Why a tokenizer or template could not be read, or a text could not be encoded or rendered.
#[derive(Debug)]
pub enum TextError {
    /// The checkpoint does not contain it.
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// The checkpoint contains it, but it contradicts itself.
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The checkpoint contains a kind that is not supported.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The kind.
        what: String,
    },
    /// The chat template does not compile, or rejected the messages. On rendering, the client's messages are
    /// at fault.
    Template {
        /// The line of the template, from 1, if known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer library rejected a text.
    Encode {
        /// The library's message.
        message: String,
    },
}

impl TextError {
    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> TextError {
        TextError::Malformed { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> TextError {
        TextError::Unsupported { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn missing(path: &Path, what: impl Into<String>) -> TextError {
        TextError::Missing { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn encode(error: impl std::fmt::Display) -> TextError {
        TextError::Encode { message: error.to_string() }
    }
}

impl From<WeightsError> for TextError {
    fn from(error: WeightsError) -> TextError {
        match error {
            WeightsError::Io { path, error } => TextError::Malformed { path, what: error.to_string() },
            WeightsError::Malformed { path, what } | WeightsError::Mismatch { path, what } => {
                TextError::Malformed { path, what }
            }
            WeightsError::Memory { path, shortage } => {
                TextError::Malformed { path, what: shortage.to_string() }
            }
        }
    }
}

impl std::fmt::Display for TextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TextError::Missing { path, what }
            | TextError::Malformed { path, what }
            | TextError::Unsupported { path, what } => write!(f, "{}: {what}", path.display()),
            TextError::Template { line: Some(line), message } => {
                write!(f, "chat template, line {line}: {message}")
            }
            TextError::Template { line: None, message } => write!(f, "chat template: {message}"),
            TextError::Encode { message } => write!(f, "the text cannot be encoded: {message}"),
        }
    }
}

impl std::error::Error for TextError {}

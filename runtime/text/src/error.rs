//! Errors of tokenizers and templates.

use monomorph_weights::WeightsError;
use std::path::{Path, PathBuf};

/// Why a tokenizer or template could not be read, or a text not be encoded or rendered.
#[derive(Debug)]
pub enum TextError {
    /// The checkpoint does not carry it.
    Missing {
        /// Which file or directory.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// The checkpoint carries it, and it contradicts itself.
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The checkpoint carries a kind that is not known here.
    Unsupported {
        /// Which file.
        path: PathBuf,
        /// Which kind.
        what: String,
    },
    /// The chat template does not compile, or it refused the messages: what a client sent, when it comes
    /// from rendering.
    Template {
        /// The line of the template, from 1, where known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer library refused a text.
    Encode {
        /// What it said.
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

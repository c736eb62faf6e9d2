//! A tensor as a file's header describes it.

use monomorph_formats::Format;
use std::ops::Range;

/// The storage of a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum Encoding {
    /// A format that this crate knows.
    Known(Format),
    /// Any other format, by its name in the file.
    Unsupported(String),
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Encoding::Known(format) => format.fmt(f),
            Encoding::Unsupported(name) => write!(f, "{name}, which is not supported"),
        }
    }
}

/// A tensor in one of the files, its range checked.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Encoding,
    /// Index of its file in the checkpoint.
    pub(crate) file: usize,
    /// Range of its bytes in that file.
    pub(crate) bytes: Range<usize>,
}

//! Checkpoints: tensors by name, read from GGUF and safetensors files.
//!
//! A reader believes nothing a file says: every count, offset and length is checked against the file
//! before it is used, and what is wrong is named. Memory claimed while reading stays proportional to the
//! size of the file, whatever its counts say.

mod checkpoint;
mod error;
mod file;
mod ggml;
mod gguf;
#[cfg(feature = "test-support")]
pub mod hostile;
mod metadata;
mod places;
mod safetensors;
#[cfg(feature = "test-support")]
pub mod test_support;

pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use file::{Bytes, WeightsFile, Windows};
pub use metadata::{Metadata, MetadataType};
pub use places::weights_directory;

use monomorph_formats::Format;

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Outermost dimension first (a matrix is `[rows, columns]` = `[outputs, inputs]`), whatever order the
    /// file uses.
    pub shape: &'a [usize],
    /// How its elements are stored.
    pub format: Format,
    /// Exactly `format.bytes(shape.product())` bytes.
    pub bytes: Bytes<'a>,
}

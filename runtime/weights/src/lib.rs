//! Checkpoints: tensors by name, read from GGUF and safetensors files.
//!
//! Readers trust nothing in a file: every count, offset and length is checked against the file before use,
//! and errors name what is wrong. Memory claimed while reading stays proportional to the size of the file,
//! whatever its counts say.

mod ahead;
mod channels;
mod checkpoint;
mod declared;
mod entry;
mod error;
mod file;
mod ggml;
mod gguf;
mod guard;
#[cfg(feature = "test-support")]
pub mod hostile;
mod made_up;
mod metadata;
mod pace;
mod packed;
mod packing;
mod pieces;
mod places;
mod safetensors;
mod scales;
mod split;
#[cfg(feature = "test-support")]
pub mod test_support;
mod windows;

pub use channels::{READING_BYTES, WeightsRead};
pub use checkpoint::{Checkpoint, Safetensors};
pub use error::WeightsError;
pub use file::{Bytes, WeightsFile};
pub use ggml::ggml_number;
pub use guard::{HostGuard, Shortage, Watch};
pub use metadata::{Metadata, MetadataType};
pub use packed::{Packed, PackedLook, SideFile, digest};
pub use packing::{BESIDE, Packing};
pub use places::{cache_directory, weights_directory};
pub use split::only_gguf;
pub use windows::Windows;

use monomorph_formats::Format;

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The tensor's name in the file.
    pub name: &'a str,
    /// Outermost dimension first (a matrix is `[rows, columns]` = `[outputs, inputs]`), whatever the order in
    /// the file.
    pub shape: &'a [usize],
    /// The format of its elements.
    pub format: Format,
    /// Exactly `format.bytes(shape.product())` bytes.
    pub bytes: Bytes<'a>,
}

//! The ends of a stack: the embedding, and the selection of rows that need logits.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;
mod sample;

pub use phases::{Embed, FUSIONS, Select};

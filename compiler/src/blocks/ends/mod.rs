//! The ends of a stack: the embedding, and the rows whose logits are wanted.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub use phases::{Embed, FUSIONS, Select};

//! The ends of a stack: the embedding, and the rows whose logits are wanted.

mod cpu;
mod phases;

pub use phases::{Embed, FUSIONS, Select};

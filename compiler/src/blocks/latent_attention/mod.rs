//! Attention over latents: the cache has one vector a token, of which every head's key and value are made.

mod cpu;
mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{FUSIONS, LatentAttention};

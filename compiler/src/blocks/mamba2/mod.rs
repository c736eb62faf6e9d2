//! Mamba-2: a recurrent state in place of a cache.

mod cpu;
mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{FUSIONS, Mamba2};

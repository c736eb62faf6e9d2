//! Attention over a K/V cache.

mod cpu;
pub(crate) mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{Attention, FUSIONS, KeepContext};

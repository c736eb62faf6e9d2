//! Attention over a K/V cache.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub use phases::{Attention, FUSIONS};

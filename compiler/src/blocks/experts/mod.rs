//! A mixture of experts, with or without one that every token is given to.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub use phases::{Combine, Experts, FUSIONS, SharedDown, SharedUp};

//! A mixture of experts, with or without a shared expert.

mod cpu;
pub(crate) mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{Choice, Chosen, Combine, Experts, FUSIONS, Judge, Latent, SharedDown, SharedUp};

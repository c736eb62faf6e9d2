//! Exchanges between ranks: sums of what each has a part of, and rows gathered from all.

pub(crate) mod cuda;
pub mod graph;
pub mod kernels;
mod phases;
mod reference;

pub use phases::{FUSIONS, Gather, Sum, Zeros};

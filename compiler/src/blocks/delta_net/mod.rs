//! The gated delta-net: a recurrent state in place of a cache.

mod cpu;
pub(crate) mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{Delta, FUSIONS, ProjectDelta};

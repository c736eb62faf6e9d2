//! The gated delta-net: a recurrent state in place of a cache.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub use phases::{Delta, FUSIONS, ProjectDelta};

//! The gated delta-net: a recurrent state in place of a cache.

mod cpu;
pub(crate) mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;
mod state;

pub use phases::{Delta, FUSIONS, ProjectDelta};
pub use state::DeltaShape;

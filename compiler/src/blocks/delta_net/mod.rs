//! The gated delta-net: a recurrent state in place of a cache.

mod cpu;
mod phases;

pub use phases::{Delta, FUSIONS, ProjectDelta};

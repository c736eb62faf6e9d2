//! The gated delta-net: a recurrent state in place of a cache.

mod phases;

pub use phases::{Delta, FUSIONS, ProjectDelta};

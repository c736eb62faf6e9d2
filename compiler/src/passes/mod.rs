//! Graph to plan, one decision a file.
//!
//! `shard` cuts the graph for several ranks, `rules` reads the blocks' fusion rules, `fuse` covers the graph
//! with them, `layout` decides how fused weights are stored, `draft` adds the passes of a draft head,
//! `tower` those of a vision tower,
//! `buckets` fixes the limits of a step, `memory` gives every value a buffer, `lower` turns groups into
//! phases, `launch` turns phases into kernel launches on a CUDA device, and `assemble` runs them in order.
//! `unbuilt` and `precision` refuse what a CUDA device and a CPU have no code for.

pub mod assemble;
pub mod buckets;
mod draft;
pub mod fuse;
pub(crate) mod launch;
pub mod layout;
pub mod lower;
pub mod memory;
mod precision;
pub mod rules;
pub mod shard;
mod tower;
pub mod unbuilt;

/// Why a graph cannot be planned for a backend: no rule covers an op, or a phase cannot take a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassError(pub String);

impl std::fmt::Display for PassError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PassError {}

/// A [`PassError`] with a formatted message.
macro_rules! pass_error {
    ($($argument:tt)*) => { $crate::passes::PassError(format!($($argument)*)) };
}
pub(crate) use pass_error;

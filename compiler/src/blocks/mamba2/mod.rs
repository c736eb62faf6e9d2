//! Mamba-2: a recurrent state in place of a cache. CPU only so far.

mod cpu;
pub mod graph;
pub(crate) mod import;
mod phases;
mod reference;
pub mod spec;

pub use phases::{FUSIONS, Mamba2};

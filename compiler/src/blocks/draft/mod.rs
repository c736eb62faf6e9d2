//! The ends of a pass that drafts.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub use phases::{DraftEmbed, FUSIONS, Propose};

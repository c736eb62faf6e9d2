//! The phases that begin and end a draft pass.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
mod phases;

pub(crate) use phases::again;
pub use phases::{DraftEmbed, FUSIONS, Propose};

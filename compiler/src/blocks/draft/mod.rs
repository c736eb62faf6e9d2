//! The ends of a pass that drafts.

mod cpu;
mod phases;

pub use phases::{DraftEmbed, FUSIONS, Propose};

//! The ends of a pass that drafts.

mod phases;

pub use phases::{DraftEmbed, FUSIONS, Propose};

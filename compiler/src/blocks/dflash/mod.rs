//! Drafters of blocks (DFlash): a small model of its own that reads the model's residual stream behind some
//! layers, and drafts a whole block of tokens in one pass (docs/adr/0062).

pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;

pub use phases::{FUSIONS, FuseTaps};
pub use spec::{DFLASH_FILE, DFLASH_PREFIX, Dflash, DflashAttention, DflashLayer};

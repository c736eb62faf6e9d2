//! Vision towers: rows of pixels to rows of a text model's residual stream, and where the text model takes
//! these.

mod cpu;
pub(crate) mod cuda;
pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;
pub(in crate::blocks) mod tower;

pub use phases::{
    Activate, AddImageRows, AttendPatches, EmbedImages, EmbedPatches, FUSIONS, MergePatches, Place,
    PoolPatches, ProjectPatches,
};
pub use spec::{ImageTokens, VISION_PREFIX, Vision, VisionFamily};

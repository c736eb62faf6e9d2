//! Vision towers: rows of pixels to rows of a text model's residual stream, and where the text model takes
//! these.

pub mod graph;
pub(crate) mod import;
pub mod kernels;
mod phases;
mod reference;
pub mod spec;
pub(in crate::blocks) mod tower;

pub use phases::FUSIONS;
pub use spec::{ImageTokens, VISION_PREFIX, Vision, VisionFamily};

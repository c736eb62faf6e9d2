//! What is done to whole rows between products: norms of what is added to the residual stream, scales, and a
//! bound on logits.

mod cpu;
mod cuda;
pub mod kernels;
mod phases;

pub use phases::{AddNormed, Cap, FUSIONS, Scale, SumNormed};

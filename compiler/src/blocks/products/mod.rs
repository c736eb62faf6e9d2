//! Matrix products around and between the other blocks, and the dense block.

mod cpu;
mod phases;

pub use phases::{Accumulate, FUSIONS, Gated, Linear, Project};

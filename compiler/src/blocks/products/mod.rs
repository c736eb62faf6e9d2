//! Matrix products around and between the other blocks, and the dense block.

mod cpu;
pub(crate) mod cuda;
pub mod kernels;
pub(crate) mod operands;
mod phases;
pub mod spec;

pub(crate) use cpu::gated;
pub use phases::{Accumulate, FUSIONS, Gated, Linear, Project, ProjectApart};
pub(crate) use phases::{apart, cut, project, stored};

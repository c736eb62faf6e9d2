//! The CPU's kernels, in one program: every instruction set has it compiled once more, and most of what ten
//! programs would compile is the same.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod delta;
mod experts;
mod gate;
mod images;
mod kept;
mod latent;
mod linear;
mod mamba2;
mod rows;
mod vision;
mod windows;

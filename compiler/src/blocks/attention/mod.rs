//! Attention over a K/V cache.

mod cpu;
mod phases;

pub use phases::{Attention, FUSIONS};

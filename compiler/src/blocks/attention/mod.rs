//! Attention over a K/V cache.

mod phases;

pub use phases::{Attention, FUSIONS};

//! The phases of towers: no backend has any yet, and plans with a tower are refused.

use crate::passes::lower::Fusion;

/// The rules of this block.
pub const FUSIONS: &[Fusion] = &[];

//! Kernels of whole rows: none yet.

use crate::kernels::Signature;

/// None.
pub const KERNELS: &[&Signature] = &[];

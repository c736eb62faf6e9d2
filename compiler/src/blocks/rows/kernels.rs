//! Kernels of whole rows: none yet.

use crate::kernels::Signature;

/// There are none.
pub const KERNELS: &[&Signature] = &[];

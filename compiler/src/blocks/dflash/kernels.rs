//! Kernels of drafters of blocks: there are none yet.

use crate::kernels::Signature;

/// All of them.
pub const KERNELS: &[&Signature] = &[];

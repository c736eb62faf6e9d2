//! Kernels of attention over latents: none yet.

use crate::kernels::Signature;

/// There are none.
pub const KERNELS: &[&Signature] = &[];

//! The kernels of towers: none yet.

use crate::kernels::Signature;

/// Every kernel of this block.
pub(crate) const KERNELS: &[&Signature] = &[];

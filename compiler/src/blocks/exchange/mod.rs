//! Exchanges between the ranks of one host: the sum of their partial sums, and rows put together from their
//! parts.

pub(crate) mod cuda;
pub mod kernels;

use crate::passes::lower::Fusion;

/// No rules yet.
pub const FUSIONS: &[Fusion] = &[];

//! Mamba-2: a recurrent state in place of a cache. CPU only so far.

mod cpu;
pub mod graph;
pub(crate) mod import;
mod phases;
mod reference;
pub mod spec;

/// No CUDA kernels yet.
pub(crate) mod kernels {
    pub(crate) const KERNELS: &[&crate::kernels::Signature] = &[];
}

pub use phases::{FUSIONS, Mamba2};

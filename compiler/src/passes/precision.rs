//! What the CPU backend computes: each of its formats in one way, and any other is refused by name.

use super::{PassError, pass_error};
use crate::graph::Graph;
use crate::spec::types::{Compute, DRAFT_PREFIX, TensorClass};
use monomorph_formats::Format;

/// Checks every matrix of a graph that is to run on a CPU, those of the draft head where `drafts` says that it is.
///
/// # Errors
/// Naming the class, and what would be right.
pub fn cpu(graph: &Graph, drafts: bool) -> Result<(), PassError> {
    let built = graph.weights.iter().filter(|weight| drafts || !weight.name.starts_with(DRAFT_PREFIX));
    for weight in built.filter(|weight| weight.class != TensorClass::Norm) {
        let (class, stored) = (weight.class.name(), weight.stored);
        let native = match stored {
            Format::F32 | Format::Bf16 | Format::F16 => Compute::F32,
            Format::Q8_0 | Format::Q4_1 => Compute::Int8Block32,
            Format::Fp8E4m3 | Format::Nvfp4 => {
                return Err(pass_error!(
                    "class `{class}` is stored as {stored}, which the CPU backend has no kernels for"
                ));
            }
        };
        if weight.compute != native {
            let (asked, native) = (weight.compute.name(), native.name());
            return Err(pass_error!(
                "class `{class}` is to compute in `{asked}`; the CPU backend computes {stored} weights in `{native}` only"
            ));
        }
    }
    Ok(())
}

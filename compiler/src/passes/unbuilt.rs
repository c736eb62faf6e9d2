//! Refuses what the CUDA backend has no kernels for, all of it by name: other passes would name one op at a
//! time. A phase refuses, too, what its kernels leave out.

use super::{PassError, pass_error};
use crate::graph::Graph;
use crate::spec::types::{Compute, Target};
use std::collections::BTreeSet;

/// Checks a graph for a CUDA device.
///
/// # Errors
/// Names everything that there are no kernels for.
pub(super) fn cuda(target: &Target, graph: &Graph) -> Result<(), PassError> {
    match lacks(target, graph) {
        None => Ok(()),
        Some(lacks) => Err(pass_error!("the CUDA backend has no kernels for {lacks}")),
    }
}

/// What the CUDA backend has no kernels for, if there is anything.
pub fn lacks(target: &Target, graph: &Graph) -> Option<String> {
    let ops = graph.bodies.iter().flat_map(|body| &body.nodes);
    let mut lacks: BTreeSet<&str> = ops.filter_map(|node| node.op.unbuilt()).collect();
    let compute = &target.quant.compute;
    let codes = compute.classes.values().chain(compute.tensors.values()).any(|it| *it == Compute::Fp8);
    if codes && target.hardware.cuda().is_some_and(|card| !card.wgmma) {
        lacks.insert("products in `fp8` on a card without `wgmma`: say `f16` in [compute]");
    }
    (!lacks.is_empty()).then(|| lacks.into_iter().collect::<Vec<_>>().join(", "))
}

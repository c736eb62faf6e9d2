//! Refuses what the CUDA backend has no kernels for, all of it by name: other passes would name one op at a
//! time. A phase refuses, too, what its kernels leave out.

use super::{PassError, pass_error};
use crate::graph::Graph;
use std::collections::BTreeSet;

/// Checks a graph for a CUDA device.
///
/// # Errors
/// Names everything that there are no kernels for.
pub(super) fn cuda(graph: &Graph) -> Result<(), PassError> {
    match lacks(graph) {
        None => Ok(()),
        Some(lacks) => Err(pass_error!("the CUDA backend has no kernels for {lacks}")),
    }
}

/// What the CUDA backend has no kernels for, if there is anything.
pub fn lacks(graph: &Graph) -> Option<String> {
    let ops = graph.bodies.iter().flat_map(|body| &body.nodes);
    let lacks: BTreeSet<&str> = ops.filter_map(|node| node.op.unbuilt()).collect();
    (!lacks.is_empty()).then(|| lacks.into_iter().collect::<Vec<_>>().join(", "))
}

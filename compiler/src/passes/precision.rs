//! Precision on the CPU backend: it computes each of its formats in one way, and refuses any other by name.

use super::{PassError, pass_error};
use crate::graph::Graph;
use crate::spec::types::{Compute, DRAFT_PREFIX, TensorClass};
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// Checks every matrix of a graph for a CPU, those of the draft head only if `drafts` is set.
///
/// # Errors
/// Names every format that has no kernel; failing that, every compute format that the backend would replace,
/// each with its classes.
pub fn cpu(graph: &Graph, drafts: bool) -> Result<(), PassError> {
    let (mut no_kernel, mut other) = (Classes::new(), Classes::new());
    let built = graph.weights.iter().filter(|weight| drafts || !weight.name.starts_with(DRAFT_PREFIX));
    for weight in built.filter(|weight| weight.class != TensorClass::Norm) {
        let (class, stored) = (weight.class.name(), weight.stored);
        match native(stored) {
            None => add(&mut no_kernel, stored.to_string(), class),
            Some(native) if weight.compute != native => {
                let (asked, native) = (weight.compute.name(), native.name());
                add(&mut other, format!("{stored} weights in `{native}` only, not in `{asked}`"), class);
            }
            Some(_) => {}
        }
    }
    if !no_kernel.is_empty() {
        return Err(pass_error!("the CPU backend has no kernels for {}", named(&no_kernel)));
    }
    if !other.is_empty() {
        return Err(pass_error!("the CPU backend computes {}", named(&other)));
    }
    Ok(())
}

/// The compute format of the kernels for a stored format; `None` if there is no kernel.
fn native(stored: Format) -> Option<Compute> {
    match stored {
        Format::F32 | Format::Bf16 | Format::F16 => Some(Compute::F32),
        Format::Q8_0 | Format::Q4_1 => Some(Compute::Int8Block32),
        Format::Fp8E4m3 | Format::Nvfp4 => None,
    }
}

/// Tensor classes by their problem, each class once.
type Classes = BTreeMap<String, Vec<&'static str>>;

fn add(classes: &mut Classes, wrong: String, class: &'static str) {
    let known = classes.entry(wrong).or_default();
    if !known.contains(&class) {
        known.push(class);
    }
}

/// Prints `nvfp4 (experts, shared), fp8-e4m3 (head)`, with each class in backticks.
fn named(classes: &Classes) -> String {
    let of = |classes: &[&str]| classes.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
    let all: Vec<String> =
        classes.iter().map(|(wrong, classes)| format!("{wrong} ({})", of(classes))).collect();
    all.join(", ")
}

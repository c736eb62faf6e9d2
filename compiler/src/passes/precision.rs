//! Precision: the formats that each backend has kernels for, and a refusal by name of any other.

use super::{PassError, pass_error};
use crate::graph::Graph;
use crate::spec::types::{Compute, DRAFT_PREFIX, TensorClass};
use monomorph_abi::ON_CARDS;
use monomorph_formats::Format;
use std::collections::BTreeMap;

/// Checks every matrix of a graph for a CPU, those of the draft head only if `drafts` is set.
///
/// # Errors
/// Names every compute format that the backend has no kernels for, each with its classes.
pub fn cpu(graph: &Graph, drafts: bool) -> Result<(), PassError> {
    let mut other = Classes::new();
    let built = graph.weights.iter().filter(|weight| drafts || !weight.name.starts_with(DRAFT_PREFIX));
    for weight in built.filter(|weight| weight.class != TensorClass::Norm) {
        let (class, stored) = (weight.class, weight.stored);
        let computes = computes(class, stored);
        if !computes.contains(&weight.compute) {
            let all: Vec<String> = computes.iter().map(|it| format!("`{}`", it.name())).collect();
            let (all, asked) = (all.join(" or "), weight.compute.name());
            add(&mut other, format!("{stored} weights in {all} only, not in `{asked}`"), class.name());
        }
    }
    if !other.is_empty() {
        return Err(pass_error!("the CPU backend computes {}", named(&other)));
    }
    Ok(())
}

/// The compute formats of the kernels for a class stored in a format.
fn computes(class: TensorClass, stored: Format) -> &'static [Compute] {
    match stored {
        // What makes keys is multiplied into queries, where the latents that a spec would round are not seen.
        Format::F32 | Format::Bf16 | Format::F16 if class == TensorClass::LatentHeads => &[Compute::F32],
        Format::F32 | Format::Bf16 | Format::F16 | Format::Nvfp4 => &[Compute::F32, Compute::F16],
        Format::Fp8E4m3 => &[Compute::F32, Compute::F16, Compute::Fp8],
        Format::Q8_0
        | Format::Q4_1
        | Format::Q4_0
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Iq4Nl
        | Format::Iq4Xs => &[Compute::Int8Block32],
    }
}

/// Checks the stored format of every weight of a graph for a CUDA device, those of the draft head only if
/// `drafts` is set.
///
/// # Errors
/// Names every format that cards have no kernels for, with its classes.
pub fn cuda(graph: &Graph, drafts: bool) -> Result<(), PassError> {
    let mut lacks = Classes::new();
    let built = graph.weights.iter().filter(|weight| drafts || !weight.name.starts_with(DRAFT_PREFIX));
    for weight in built.filter(|weight| !ON_CARDS.contains(&weight.stored)) {
        add(&mut lacks, weight.stored.to_string(), weight.class.name());
    }
    if lacks.is_empty() {
        return Ok(());
    }
    Err(pass_error!("the CUDA backend has no kernels for {}", named(&lacks)))
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

//! How far rounding alone moves a row of logits, as the interpreter measures it: the part of a row's distance
//! that says nothing about kernels.
//!
//! Small random models have rows that any rounding moves far: the norm behind a delta-net amplifies an output
//! near zero, and its error carries over to later tokens. Such a row changes with any change of rounding,
//! even if every kernel is right (docs/accuracy.md, "Right, on the emulated card").

use crate::logits::{Logits, rows_apart};
use monomorph_compiler::graph;
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_weights::Checkpoint;
use std::path::Path;

/// A row may be this many times as far away as rounding moved it: four roundings underestimate the largest
/// effect, and kernels round what the interpreter does not (queries and weights of attention).
pub const TIMES: f32 = 2.0;

/// By prompt and token, the largest allowed distance from `expected`: `bound`, or twice the distance by
/// which rounding moves the row, if that is larger. Four variants measure it: the target's own
/// rounding, K/V in f32 and in f16, and products in f32. A target whose products are in fp8 has a
/// fifth: those in f16, as kernels of few rows have them.
///
/// # Panics
/// If the checkpoint does not fit the target.
pub fn bounds(
    target: &Target,
    weights: &Path,
    prompts: &[Vec<u32>],
    expected: &Logits,
    bound: f32,
) -> Vec<Vec<f32>> {
    let mut bounds: Vec<Vec<f32>> = prompts.iter().map(|prompt| vec![bound; prompt.len()]).collect();
    let computes = || target.quant.compute.classes.values();
    if computes().all(|compute| compute.is_exact()) {
        return bounds;
    }
    for variant in variants(target) {
        let found = interpret(&variant, weights, prompts);
        let moved = rows_apart(&found, expected, target.model.vocabulary);
        for (bound, moved) in bounds.iter_mut().flatten().zip(moved) {
            *bound = bound.max(TIMES * moved);
        }
    }
    // Rounding to codes moves values over the edge between two, and rows to other experts: not the same ones
    // in another order of summation. So any row may be moved as far as the one that is moved furthest.
    if computes().any(|compute| *compute == Compute::Fp8) {
        let furthest = bounds.iter().flatten().fold(bound, |a, b| a.max(*b));
        bounds.iter_mut().flatten().for_each(|it| *it = furthest);
    }
    bounds
}

/// A target whose products round, and the same with a different rounding of K/V or of what it rounds for
/// tensor cores, its tower's products among it.
pub fn variants(target: &Target) -> Vec<Target> {
    let own = target.quant.kv_formats;
    let [f32, f16] = [Cached::F32, Cached::F16].map(KvFormats::both);
    let mut others = vec![(None, own), (None, f32), (None, f16), (Some(Compute::F32), own)];
    if target.quant.compute.classes.values().any(|compute| *compute == Compute::Fp8) {
        others.push((Some(Compute::F16), own));
    }
    let variant = |(compute, kv): (Option<Compute>, KvFormats)| {
        let mut other = target.clone();
        let quant = &mut other.quant;
        quant.kv_formats = kv;
        let computes = quant.compute.classes.values_mut().chain(quant.compute.tensors.values_mut());
        let computes = computes.chain(other.tower.iter_mut().map(|tower| &mut tower.compute));
        computes.filter(|it| !it.is_exact()).for_each(|it| *it = compute.unwrap_or(*it));
        other
    };
    others.into_iter().map(variant).collect()
}

fn interpret(target: &Target, weights: &Path, prompts: &[Vec<u32>]) -> Logits {
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint);
    let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let forward = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
    prompts.iter().map(forward).collect()
}

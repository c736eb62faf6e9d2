//! How far rounding alone moves rows of logits, as the interpreter measures it: what of a row's distance says
//! nothing about kernels.
//!
//! Small random models have rows that any rounding moves far: an output of a delta-net that is nearly zero is
//! made large by the norm behind it, and what was wrong with it goes into the tokens after it. Such a row is
//! another one wherever something is rounded otherwise, before a kernel has done anything wrong
//! (docs/accuracy.md, "Right, on the emulated card").

use crate::logits::{Logits, rows_apart};
use monomorph_compiler::graph;
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_formats::Format;
use monomorph_weights::Checkpoint;
use std::path::Path;

/// A row may be so many times as far away as rounding moved it: four roundings are few to know the largest
/// by, and kernels round what the interpreter does not (queries and weights of attention).
const TIMES: f32 = 2.0;

/// By prompt and token, how far logits may be from `expected`: `bound`, or twice as far as rounding moves the
/// row, if that is more. Rounded is as the target says; K/V less, or not at all; products not at all.
///
/// # Panics
/// If the checkpoint is not the target's.
pub fn bounds(
    target: &Target,
    weights: &Path,
    prompts: &[Vec<u32>],
    expected: &Logits,
    bound: f32,
) -> Vec<Vec<f32>> {
    let mut bounds: Vec<Vec<f32>> = prompts.iter().map(|prompt| vec![bound; prompt.len()]).collect();
    if target.quant.compute.classes.values().all(|compute| *compute != Compute::F16) {
        return bounds;
    }
    let kv = target.quant.kv_format;
    let others =
        [(Compute::F16, kv), (Compute::F16, Format::F32), (Compute::F16, Format::F16), (Compute::F32, kv)];
    for (compute, kv) in others {
        let found = interpret(target, weights, prompts, compute, kv);
        let moved = rows_apart(&found, expected, target.model.vocabulary);
        for (bound, moved) in bounds.iter_mut().flatten().zip(moved) {
            *bound = bound.max(TIMES * moved);
        }
    }
    bounds
}

/// The interpreter's logits with another rounding of what the target rounds to f16, and of K/V.
fn interpret(target: &Target, weights: &Path, prompts: &[Vec<u32>], compute: Compute, kv: Format) -> Logits {
    let mut quant = target.quant.clone();
    quant.kv_format = kv;
    let computes = quant.compute.classes.values_mut().chain(quant.compute.tensors.values_mut());
    computes.filter(|it| **it == Compute::F16).for_each(|it| *it = compute);
    let graph = graph::build(&target.model, &quant);
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(&graph, &quant, &checkpoint);
    let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let forward = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
    prompts.iter().map(forward).collect()
}

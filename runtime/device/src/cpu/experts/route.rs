//! The router: chooses the experts of a row.

use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, at, exp};
use super::super::team::Lane;

/// Softmax in f32 over the first `EXPERTS` logits of each of the first `rows` rows, then the `ACTIVE` largest
/// probabilities in descending order; among equal ones, the lower id comes first. A row of `routing`
/// (`ROUTING = 2 * ACTIVE`) receives the weights, then the ids as f32. With `renormalise`, weights are
/// divided by their sum.
///
/// Logits beyond the experts (`LOGITS > EXPERTS`) are ignored: the shared expert's gate may be one more row
/// of the router's matrix. A row with NaN logits chooses some experts, with NaN weights.
pub fn route<const EXPERTS: usize, const LOGITS: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    logits: &Rows<LOGITS>,
    renormalise: bool,
    routing: &Rows<ROUTING>,
) {
    const {
        assert!(EXPERTS <= LOGITS, "each expert has a logit");
        assert!(super::active(ROUTING) <= EXPERTS, "no more experts are active than there are");
        assert!(EXPERTS <= 1 << 24, "ids are exact in f32");
    }
    for row in lane.share(rows) {
        // SAFETY: no lane writes logits in this phase, and the shares of the lanes are disjoint.
        let (logits, routing) = unsafe { (logits.padded(row), routing.part_mut(row, 0, ROUTING)) };
        let (weights, ids) = routing.split_at_mut(ROUTING / 2);
        choose::<EXPERTS>(logits, weights, ids);
        if renormalise {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    }
    lane.barrier();
}

/// The largest probabilities of a (padded) row of logits, and their indices.
fn choose<const EXPERTS: usize>(logits: &[f32], weights: &mut [f32], ids: &mut [f32]) {
    let vectors = || {
        (0..EXPERTS).step_by(LANES).map(|from| {
            let x = F32s::load(at(logits, from));
            if EXPERTS - from < LANES { x.keep(EXPERTS - from, f32::NEG_INFINITY) } else { x }
        })
    };
    let largest = vectors().fold(F32s::splat(f32::NEG_INFINITY), |largest, x| x.max(largest)).largest();
    let largest = F32s::splat(largest);
    let sum = vectors().fold(F32s::zero(), |sum, x| sum + exp(x - largest)).sum();
    let mut found = 0;
    for (vector, x) in vectors().enumerate() {
        let probabilities = (exp(x - largest) / F32s::splat(sum)).to_array();
        for (i, p) in probabilities.into_iter().take(EXPERTS - vector * LANES).enumerate() {
            if found == weights.len() && p <= weights[found - 1] {
                continue;
            }
            // Later ids go behind equal ones. NaN goes behind everything, so that every place is filled.
            found = weights.len().min(found + 1);
            let mut place = found - 1;
            while place > 0 && p > weights[place - 1] {
                (weights[place], ids[place]) = (weights[place - 1], ids[place - 1]);
                place -= 1;
            }
            (weights[place], ids[place]) = (p, (vector * LANES + i) as f32);
        }
    }
}

//! The router: chooses the experts of a row.

use super::super::loader::Vector;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, at, exp, sigmoid};
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
    each_row::<EXPERTS, _, _>(lane, rows, logits, routing, |logits, weights, ids| {
        choose::<EXPERTS>(logits, weights, ids);
        if renormalise {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    });
}

/// Scores: the sigmoids of the first `EXPERTS` logits of each of the first `rows` rows. The experts with the
/// `ACTIVE` largest sums of score and correction are chosen, in the order that [`route`] has; their weights
/// are `scale` times their scores, divided by the sum of these and `1e-20`, as in the makers' code.
pub fn route_by_scores<const EXPERTS: usize, const LOGITS: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    logits: &Rows<LOGITS>,
    correction: &Vector<EXPERTS>,
    scale: f32,
    routing: &Rows<ROUTING>,
) {
    each_row::<EXPERTS, _, _>(lane, rows, logits, routing, |logits, weights, ids| {
        let mut scores = [0.0f32; EXPERTS];
        for (vector, scores) in scores.chunks_mut(LANES).enumerate() {
            let score = sigmoid(F32s::load(at(logits, vector * LANES))).to_array();
            scores.copy_from_slice(&score[..scores.len()]);
        }
        let mut best = Best { keys: weights, ids, found: 0 };
        for (id, (score, correction)) in scores.iter().zip(correction.padded()).enumerate() {
            best.offer(id, score + correction);
        }
        for (weight, id) in weights.iter_mut().zip(ids.iter()) {
            *weight = scores[*id as usize];
        }
        let sum = weights.iter().sum::<f32>() + 1e-20;
        weights.iter_mut().for_each(|weight| *weight *= scale / sum);
    });
}

/// Gives each of this lane's rows to `choose`: its (padded) logits, and its places for weights and ids. Ends
/// with a barrier.
fn each_row<const EXPERTS: usize, const LOGITS: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    logits: &Rows<LOGITS>,
    routing: &Rows<ROUTING>,
    choose: impl Fn(&[f32], &mut [f32], &mut [f32]),
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
        choose(logits, weights, ids);
    }
    lane.barrier();
}

/// Multiplies the weight of each chosen expert of the first `rows` rows of `routing` by the expert's own
/// number.
pub fn scale_chosen<const EXPERTS: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    scales: &Vector<EXPERTS>,
    routing: &Rows<ROUTING>,
) {
    for row in lane.share(rows) {
        // SAFETY: the shares of the lanes are disjoint.
        let routing = unsafe { routing.part_mut(row, 0, ROUTING) };
        let (weights, ids) = routing.split_at_mut(ROUTING / 2);
        for (weight, id) in weights.iter_mut().zip(ids.iter()) {
            *weight *= scales.padded()[*id as usize];
        }
    }
    lane.barrier();
}

/// The largest keys so far in descending order, and whose they are.
struct Best<'a> {
    keys: &'a mut [f32],
    ids: &'a mut [f32],
    found: usize,
}

impl Best<'_> {
    /// Takes the key of one more expert, if it is large enough. Later ids go behind equal ones. NaN goes
    /// behind everything, so that every place is filled.
    fn offer(&mut self, id: usize, key: f32) {
        let Best { keys, ids, found } = self;
        if *found == keys.len() && key <= keys[*found - 1] {
            return;
        }
        *found = keys.len().min(*found + 1);
        let mut place = *found - 1;
        while place > 0 && key > keys[place - 1] {
            (keys[place], ids[place]) = (keys[place - 1], ids[place - 1]);
            place -= 1;
        }
        (keys[place], ids[place]) = (key, id as f32);
    }
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
    let mut best = Best { keys: weights, ids, found: 0 };
    for (vector, x) in vectors().enumerate() {
        let probabilities = (exp(x - largest) / F32s::splat(sum)).to_array();
        for (i, p) in probabilities.into_iter().take(EXPERTS - vector * LANES).enumerate() {
            best.offer(vector * LANES + i, p);
        }
    }
}

//! Filters of the tokens to draw from: top-k, top-p and min-p, none of which sorts the vocabulary.

use crate::numeric::{largest, sum};
use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    /// Its logit in [`top_k`], its unnormalised probability everywhere else.
    pub(crate) weight: f32,
}

/// Heaviest first, the smallest id among equals: a total order unless a weight is NaN.
fn heaviest_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

/// The `k` largest of a row without NaN (all of it if it has no more than `k`), in no particular order; `k`
/// is at least 1.
pub(crate) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    const BLOCK: usize = 64;
    // k blocks contain a value of at least the k-th largest block maximum, so the k-th largest value is no
    // smaller.
    let mut maxima: Vec<f32> = logits.chunks(BLOCK).map(largest).collect();
    let bound = match maxima.len().checked_sub(k) {
        Some(below) => *maxima.select_nth_unstable_by(below, f32::total_cmp).1,
        None => f32::NEG_INFINITY,
    };
    let mut candidates = at_least(logits, bound);
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, heaviest_first);
        candidates.truncate(k);
    }
    candidates
}

/// The heaviest of a row of weights in `[0, 1]`: enough of them to sum to `target`, and any others that weigh
/// as much as the lightest of them.
pub(crate) fn heaviest(weights: &[f32], target: f64) -> Vec<Candidate> {
    // A few tokens decide most rows, so those are tried first. Each pass is one vectorised comparison.
    for bound in [0.02, 5e-4, 1e-6] {
        let candidates = at_least(weights, bound);
        if candidates.iter().map(|candidate| f64::from(candidate.weight)).sum::<f64>() >= target {
            return candidates;
        }
    }
    at_least(weights, 0.0)
}

fn at_least(row: &[f32], bound: f32) -> Vec<Candidate> {
    const BLOCK: usize = 64;
    let mut candidates = Vec::new();
    for (block, values) in row.chunks(BLOCK).enumerate() {
        // Vector code skips whole blocks.
        if !values.iter().fold(false, |found, &value| found | (value >= bound)) {
            continue;
        }
        for (within, &weight) in values.iter().enumerate() {
            if weight >= bound {
                candidates.push(Candidate { id: (block * BLOCK + within) as u32, weight });
            }
        }
    }
    candidates
}

/// Keeps the smallest set of the heaviest candidates that sum to `target`, and at least one.
pub(crate) fn top_p(candidates: &mut Vec<Candidate>, target: f64) {
    // A selection by weight: everything before `kept` is heavier than the rest and is kept; the boundary lies
    // in `kept..end`, which each round halves.
    let (mut kept, mut end) = (0, candidates.len());
    let mut missing = target;
    while end - kept > 1 {
        let half = (end - kept) / 2;
        let open = &mut candidates[kept..end];
        open.select_nth_unstable_by(half, heaviest_first);
        let upper: f64 = open[..half].iter().map(|candidate| f64::from(candidate.weight)).sum();
        if upper >= missing {
            end = kept + half;
        } else {
            kept += half;
            missing -= upper;
        }
    }
    // Either the last undecided candidate completes the target, or rounding left it just short: it is kept in
    // both cases.
    candidates.truncate(end.max(1));
}

/// Sets logits to minus infinity that are more than `count` standard deviations below `best`, the largest.
/// The deviation is that of the finite logits (population, in f64: first the mean, then the squared
/// differences from it), as in Tang et al., "Top-nσ: Not All Logits Are You Need", 2024. Nothing changes if
/// the largest is not finite.
pub(crate) fn top_n_sigma(logits: &mut [f32], best: f32, count: f32) {
    if !best.is_finite() {
        return;
    }
    let finite = || logits.iter().filter(|logit| logit.is_finite()).map(|logit| f64::from(*logit));
    let number = finite().count() as f64;
    let mean = finite().sum::<f64>() / number;
    let variance = finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / number;
    let bound = (f64::from(best) - f64::from(count) * variance.sqrt()) as f32;
    for logit in logits {
        *logit = if *logit >= bound { *logit } else { f32::NEG_INFINITY };
    }
}

/// Sets weights below `bound` to zero.
pub(crate) fn min_p(weights: &mut [f32], bound: f32) {
    for weight in weights {
        *weight = if *weight >= bound { *weight } else { 0.0 };
    }
}

/// Draws from candidates in order of id; `uniform` is in `[0, 1)`.
pub(crate) fn draw(candidates: &mut [Candidate], uniform: f64) -> u32 {
    candidates.sort_unstable_by_key(|candidate| candidate.id);
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    let mut left = uniform * total;
    let mut last = 0;
    for candidate in candidates.iter().filter(|candidate| candidate.weight > 0.0) {
        last = candidate.id;
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            break;
        }
    }
    // If rounding lets the walk run past the end, the last possible token is drawn.
    last
}

/// Draws from a whole row of weights in order of id; `uniform` is in `[0, 1)`.
pub(crate) fn draw_row(weights: &[f32], uniform: f64) -> u32 {
    const BLOCK: usize = 256;
    let sums: Vec<f64> = weights.chunks(BLOCK).map(sum).collect();
    let mut left = uniform * sums.iter().sum::<f64>();
    let mut chosen = 0;
    for (block, &sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
        chosen = block;
        if left < sum {
            break;
        }
        left -= sum;
    }
    let mut last = 0;
    for (within, &weight) in weights.iter().skip(chosen * BLOCK).take(BLOCK).enumerate() {
        if weight > 0.0 {
            last = within;
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
    }
    (chosen * BLOCK + last) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One favourite, and a crowd that weighs as much together.
    #[test]
    fn the_heaviest_reach_their_target() {
        let mut weights = vec![1e-3; 1_001];
        weights[7] = 1.0;
        for (target, wanted) in [(0.9, 1), (1.0, 1), (1.1, 1_001), (2.5, 1_001)] {
            let heaviest = heaviest(&weights, target);
            assert_eq!(heaviest.len(), wanted, "{target}");
            assert!(heaviest.iter().any(|it| it.id == 7));
        }
    }

    /// Parts of `[0, 1)` are closed below and open above; a walk past the end finds the last that may be
    /// drawn.
    #[test]
    fn a_draw_at_a_boundary_is_the_token_behind_it() {
        let mut few = [(4, 1.0), (9, 0.0), (12, 1.0), (13, 0.0)].map(|(id, weight)| Candidate { id, weight });
        let mut row = vec![0.0; 600];
        (row[4], row[12]) = (1.0, 1.0);
        for (uniform, wanted) in [(0.0, 4), (0.25, 4), (0.5, 12), (0.75, 12)] {
            assert_eq!(draw(&mut few, uniform), wanted, "{uniform}");
            assert_eq!(draw_row(&row, uniform), wanted, "{uniform}");
        }
        assert_eq!(draw(&mut few, 1.0), 12);
        // In blocks of their own.
        (row[12], row[300]) = (0.0, 1.0);
        for (uniform, wanted) in [(0.25, 4), (0.5, 300), (0.75, 300)] {
            assert_eq!(draw_row(&row, uniform), wanted, "{uniform}");
        }
    }
}

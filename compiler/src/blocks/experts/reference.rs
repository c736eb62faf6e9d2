//! The reference of a mixture of experts, written as plainly as possible.

use super::graph::{ExpertDown, ExpertGate, ExpertUp, LEAST_SUM, Route, Weighing};
use crate::blocks::Computed;
use crate::graph::WeightId;
use crate::reference::{Evaluation, ops};

impl Computed for Route {
    /// Computes rows of `[weights | experts]`.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let Route { experts, active, weighing, scales } = *self;
        let own = |expert: usize| scales.map_or(1.0, |scales| it.weight(scales)[expert]);
        let row = |logits: &[f32]| -> Vec<f32> {
            let (weights, order): (Vec<f32>, _) = match weighing {
                Weighing::Softmax { renormalise } => {
                    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let powers: Vec<f64> =
                        logits.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).collect();
                    let order = first(active, logits);
                    let over: f64 = if renormalise {
                        order.iter().map(|e| powers[*e]).sum()
                    } else {
                        powers.iter().sum()
                    };
                    (order.iter().map(|e| (powers[*e] / over) as f32).collect(), order)
                }
                Weighing::Scores { correction, scale } => {
                    let score = |x: &f32| (1.0 / (1.0 + (-f64::from(*x)).exp())) as f32;
                    let scores: Vec<f32> = logits.iter().map(score).collect();
                    let keys: Vec<f32> =
                        scores.iter().zip(it.weight(correction)).map(|(s, c)| s + c).collect();
                    let order = first(active, &keys);
                    let sum: f64 = order.iter().map(|e| f64::from(scores[*e])).sum();
                    let over = sum + f64::from(LEAST_SUM);
                    let weight = |e: &usize| (f64::from(scale) * f64::from(scores[*e]) / over) as f32;
                    (order.iter().map(weight).collect(), order)
                }
            };
            let scaled = weights.into_iter().zip(&order).map(|(weight, e)| own(*e) * weight);
            scaled.chain(order.iter().map(|e| *e as f32)).collect()
        };
        it.input(0).chunks_exact(experts).flat_map(row).collect()
    }
}

/// The indices of the largest keys, in descending order.
fn first(active: usize, keys: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    // A stable sort: the first of equals comes first.
    order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
    order.truncate(active);
    order
}

/// Weight and expert of each slot of a row of `routing`.
fn slots(routing: &[f32]) -> impl Iterator<Item = (f32, usize)> {
    let (weights, experts) = routing.split_at(routing.len() / 2);
    weights.iter().copied().zip(experts.iter().map(|e| *e as usize))
}

/// A rank's index of an expert; `None` if another rank holds it.
fn held(it: &Evaluation, id: WeightId, expert: usize) -> Option<usize> {
    let (weight, experts) = it.experts(id);
    let first = if weight.cut.experts { it.rank() * experts.len() } else { 0 };
    expert.checked_sub(first).filter(|expert| *expert < experts.len())
}

impl Computed for ExpertGate {
    /// The gated halves of the chosen experts, side by side; zeros for those of other ranks.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [(gate, gates), (up, ups)] = [self.gate, self.up].map(|weight| it.experts(weight));
        let rows = it.input(0).chunks_exact(gate.columns).zip(it.input(1).chunks_exact(2 * self.active));
        let slot = |x: &[f32], expert: usize| {
            let Some(expert) = held(it, self.gate, expert) else { return vec![0.0; gate.rows] };
            ops::gate(
                &ops::linear(x, gate, &gates[expert], None),
                &ops::linear(x, up, &ups[expert], None),
                self.activation,
            )
        };
        rows.flat_map(|(x, routing)| {
            slots(routing).flat_map(|(_, expert)| slot(x, expert)).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Computed for ExpertUp {
    /// The inner rows of the chosen experts, side by side; zeros for those of other ranks.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (up, ups) = it.experts(self.up);
        let rows = it.input(0).chunks_exact(up.columns).zip(it.input(1).chunks_exact(2 * self.active));
        let slot = |x: &[f32], expert: usize| match held(it, self.up, expert) {
            Some(expert) => ops::activated(&ops::linear(x, up, &ups[expert], None), self.activation),
            None => vec![0.0; up.rows],
        };
        rows.flat_map(|(x, routing)| {
            slots(routing).flat_map(|(_, expert)| slot(x, expert)).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Computed for ExpertDown {
    /// The weighted sum of the chosen experts, as far as this rank holds them.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (down, downs) = it.experts(self.down);
        let inner = it.input(0).chunks_exact(self.active * down.columns);
        let rows = inner.zip(it.input(1).chunks_exact(2 * self.active));
        let row = |(inner, routing): (&[f32], &[f32])| -> Vec<f32> {
            let mut sums = vec![0.0f64; down.rows];
            for (x, (weight, expert)) in inner.chunks_exact(down.columns).zip(slots(routing)) {
                let Some(expert) = held(it, self.down, expert) else { continue };
                let product = ops::linear(x, down, &downs[expert], None);
                sums.iter_mut().zip(product).for_each(|(sum, y)| *sum += f64::from(weight) * f64::from(y));
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        };
        rows.flat_map(row).collect()
    }
}

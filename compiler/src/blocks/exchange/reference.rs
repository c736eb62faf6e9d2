//! The reference of what ranks exchange.

use super::graph::{Gather, Sum, Total, Zeros};
use crate::blocks::Computed;
use crate::reference::Evaluation;

impl Computed for Zeros {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        vec![0.0; it.tokens() * it.out_width()]
    }
}

impl Computed for Sum {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        it.input(0).iter().zip(total(it, 1)).map(|(residual, sum)| residual + sum).collect()
    }
}

impl Computed for Total {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        total(it, 0)
    }
}

/// The sum of an operand of all ranks, in their order.
fn total(it: &Evaluation, index: usize) -> Vec<f32> {
    let parts = it.input_of_ranks(index);
    let sum = |at: usize| parts.iter().map(|part| part[at]).reduce(|sum, part| sum + part);
    (0..parts[0].len()).map(|at| sum(at).expect("a part of every rank")).collect()
}

impl Computed for Gather {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (parts, width) = (it.input_of_ranks(0), it.width(0));
        let rows = parts[0].len() / width;
        let row = |row: usize| parts.iter().flat_map(move |part| &part[row * width..][..width]);
        (0..rows).flat_map(row).copied().collect()
    }
}

//! The reference of what ranks exchange.

use super::graph::{Gather, Sum, Zeros};
use crate::blocks::Computed;
use crate::reference::Evaluation;

impl Computed for Zeros {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        vec![0.0; it.tokens() * it.out_width()]
    }
}

impl Computed for Sum {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let parts = it.input_of_ranks(1);
        let sum = |at: usize| parts.iter().map(|part| part[at]).reduce(|sum, part| sum + part);
        let residual = it.input(0).iter().enumerate();
        residual.map(|(at, residual)| residual + sum(at).expect("a part of every rank")).collect()
    }
}

impl Computed for Gather {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (parts, width) = (it.input_of_ranks(0), it.width(0));
        let rows = parts[0].len() / width;
        let row = |row: usize| parts.iter().flat_map(move |part| &part[row * width..][..width]);
        (0..rows).flat_map(row).copied().collect()
    }
}

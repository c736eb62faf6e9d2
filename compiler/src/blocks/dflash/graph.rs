//! The op of drafters of blocks.

use crate::blocks::Operation;

/// `x -> x`: the model's residual streams behind some of its layers, side by side, as they were kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps;

impl Operation for Taps {
    const NAME: &'static str = "taps";
}

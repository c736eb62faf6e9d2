//! The ops of towers, and those by which a text model takes what they give.
//!
//! Rows of patches stand in merge order: the merge blocks of an image from left to right and top to bottom,
//! and so the patches in each. Every patch has a row and a column in its image, from 0.

use crate::blocks::{FieldForm, Operation};
use crate::graph::WeightId;
use crate::spec::types::{RotaryPairs, Vision, VisionFamily};

/// `x -> (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b` (Ba, Kiros & Hinton, 2016).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[width]`.
    pub weight: WeightId,
    /// `[width]`.
    pub bias: WeightId,
    /// Added to the variance.
    pub eps: f32,
}

/// `x -> x + p`, where `p` is made of rows of a table by the patch's place in its image.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchPositions {
    /// `[entries, width]`.
    pub table: WeightId,
    /// How `p` is made.
    pub form: PositionTable,
}

/// What a table of positions holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionTable {
    /// A square of `side * side` places, row by row. `p` is interpolated between four of them at row
    /// `r (side - 1) / max(rows - 1, 1)` and column `c (side - 1) / max(columns - 1, 1)`, for an image of
    /// `rows` by `columns` patches: corners lie on corners.
    Square {
        /// Entries of a side.
        side: usize,
    },
    /// `entries` for columns, then as many for rows: `p = table[c] + table[entries + r]`.
    Axes {
        /// Entries of an axis.
        entries: usize,
    },
}

/// Rotates pairs of each head by the patch's row or column times a frequency.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchRotary {
    /// Heads in the row.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Every pair of a head.
    pub turns: Vec<PatchTurn>,
}

/// A pair of dimensions of a head and what turns it, by `inverse` radians a step (an f32 product).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchTurn {
    /// The two dimensions.
    pub pair: [usize; 2],
    /// What is multiplied.
    pub axis: PatchAxis,
    /// By what.
    pub inverse: f32,
}

/// An axis of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchAxis {
    /// From top to bottom: a patch's row counts along it.
    Row,
    /// From left to right: its column does.
    Column,
}

impl PatchTurn {
    /// The pairs of a head of a tower.
    pub fn of(vision: &Vision) -> Vec<PatchTurn> {
        use PatchAxis::{Column, Row};
        let dim = vision.head_dim();
        // In each half of a head, or for each axis, as many.
        let quarter = dim / 4;
        let turn = |pair, axis, theta: f64, exponent: f32| PatchTurn {
            pair,
            axis,
            inverse: 1.0 / theta.powf(f64::from(exponent)) as f32,
        };
        let of_half = |j: usize| (2 * j) as f32 / (dim / 2) as f32;
        match &vision.family {
            VisionFamily::Qwen { .. } => {
                let axis = |axis, from| {
                    let one = move |j| turn([from + j, from + j + dim / 2], axis, 1e4, of_half(j));
                    (0..quarter).map(one)
                };
                axis(Row, 0).chain(axis(Column, quarter)).collect()
            }
            VisionFamily::Gemma { .. } => {
                let axis = |axis, from| {
                    let one = move |j| turn([from + j, from + j + quarter], axis, 100.0, of_half(j));
                    (0..quarter).map(one)
                };
                axis(Column, 0).chain(axis(Row, dim / 2)).collect()
            }
            VisionFamily::Pixtral { pairs } => {
                let axis = |axis, from, odd: usize| {
                    let one = move |j: usize| {
                        let at = from + j;
                        let pair = match pairs {
                            RotaryPairs::Halves => [at, at + dim / 2],
                            RotaryPairs::Adjacent => [2 * at, 2 * at + 1],
                        };
                        // Frequencies of the whole head alternate between the axes.
                        turn(pair, axis, 1e4, (2 * (2 * j + odd)) as f32 / dim as f32)
                    };
                    (0..quarter).map(one)
                };
                axis(Row, 0, 0).chain(axis(Column, quarter, 1)).collect()
            }
        }
    }
}

/// `(q, k, v) -> softmax(scale q K^T) V` over the rows of the same segment, before and behind: the patches of
/// an image, of a video those of a frame. There are as many heads of keys and values as of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentAttention {
    /// Heads in the row.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

/// The rows of a merge block, one after another, to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergePatches {
    /// Rows of a block.
    pub merged: usize,
    /// What becomes of them.
    pub form: Merged,
}

/// A merged row, of rows `x` of `n` patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// `[x_0 | x_1 | …]`.
    SideBySide,
    /// `[x_0[0], x_1[0], …, x_0[1], x_1[1], …]`: channel by channel.
    ByChannel,
    /// `(x_0 + x_1 + …) / n`.
    Mean,
}

/// `x -> (x - bias) * scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standardise {
    /// `[width]`.
    pub bias: WeightId,
    /// `[width]`.
    pub scale: WeightId,
}

/// `x -> the image's row where a token stands for one, else x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRows;

/// `x -> x + the image's row where a token stands for one, else x`, of the rows of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddImageRows {
    /// Index into [`Vision::deepstack`].
    pub tap: usize,
}

impl Operation for LayerNorm {
    const NAME: &'static str = "layer-norm";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        [self.weight, self.bias].map(|it| (it, FieldForm::Vector)).to_vec()
    }
}

impl Operation for PatchPositions {
    const NAME: &'static str = "patch-positions";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        vec![(self.table, FieldForm::Table)]
    }
}

impl Operation for PatchRotary {
    const NAME: &'static str = "patch-rotary";
}

impl Operation for SegmentAttention {
    const NAME: &'static str = "segment-attention";
}

impl Operation for MergePatches {
    const NAME: &'static str = "merge-patches";
}

impl Operation for Standardise {
    const NAME: &'static str = "standardise";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        [self.bias, self.scale].map(|it| (it, FieldForm::Vector)).to_vec()
    }
}

impl Operation for ImageRows {
    const NAME: &'static str = "image-rows";
}

impl Operation for AddImageRows {
    const NAME: &'static str = "add-image-rows";
}

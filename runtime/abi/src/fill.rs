//! The arguments of the kernels that make up weights on a CUDA device (templates/cuda/core/fill.cuh).

use crate::wire::{header_of, wire};

wire! {
    /// What a matrix is filled with.
    FillShape as "FillShape" {
        /// Output rows of the matrix; with `gated`, of one of its two parts.
        rows: i32,
        columns: i32,
        /// 1: tiles of 8 rows alternate between the parts.
        gated: i32,
        /// Standard deviation of the weights.
        deviation: f32,
        seed: u64,
    }
}

/// Names and C++ types of the parameters of `fill_matrix`.
pub const MATRIX: &[(&str, &str)] =
    &[("codes", "void*"), ("scales", "void*"), ("row_scales", "float*"), ("shape", "FillShape")];

/// Names and C++ types of the parameters of `fill_vector`.
pub const VECTOR: &[(&str, &str)] = &[
    ("values", "float*"),
    ("count", "long long"),
    ("centre", "float"),
    ("deviation", "float"),
    ("seed", "unsigned long long"),
];

/// The text of `templates/cuda/core/fill_shape.cuh`.
pub fn header() -> String {
    header_of("fill.rs", "<cstddef>", "", DECLARATIONS)
}

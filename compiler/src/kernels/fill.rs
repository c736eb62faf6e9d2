//! Kernels that generate dummy weights. Only the loader launches them.

use super::{MATRIX, Parameter, Signature};
use monomorph_abi::fill;

const fn parameters<const N: usize>(declared: &[(&'static str, &'static str)]) -> [Parameter; N] {
    let mut parameters = [Parameter { name: "", kind: "" }; N];
    let mut at = 0;
    while at < N {
        parameters[at] = Parameter { name: declared[at].0, kind: declared[at].1 };
        at += 1;
    }
    parameters
}

/// Fills a packed matrix.
pub const FILL_MATRIX: &Signature = &Signature {
    function: "fill_matrix",
    arguments: "FillMatrix",
    header: "core/fill.cuh",
    config: false,
    constants: &[MATRIX],
    parameters: &parameters::<{ fill::MATRIX.len() }>(fill::MATRIX),
    declarations: "",
    checks: &[],
    grid: &[],
    bytes: &[],
    body: "fill_matrix<{FORMAT}, {SCALES}>(codes, scales, row_scales, shape);",
};

/// Fills a vector of f32.
pub const FILL_VECTOR: &Signature = &Signature {
    function: "fill_vector",
    arguments: "FillVector",
    header: "core/fill.cuh",
    config: false,
    constants: &[],
    parameters: &parameters::<{ fill::VECTOR.len() }>(fill::VECTOR),
    declarations: "",
    checks: &[],
    grid: &[],
    bytes: &[],
    body: "fill_vector(values, count, centre, deviation, seed);",
};

//! Kernels that generate dummy weights. Only the loader launches them.

use super::{Config, Parameter, Signature};

const fn parameter(name: &'static str, kind: &'static str) -> Parameter {
    Parameter { name, kind }
}

/// Fills a packed matrix.
pub const FILL_MATRIX: &Signature = &Signature {
    function: "fill_matrix",
    arguments: "FillMatrix",
    header: "core/fill.cuh",
    config: Config::None,
    parameters: &[
        parameter("codes", "void*"),
        parameter("scales", "void*"),
        parameter("row_scales", "float*"),
        parameter("shape", "FillShape"),
    ],
    declarations: "",
    checks: &[],
    body: "fill_matrix<{FORMAT}, {SCALES}>(codes, scales, row_scales, shape);",
};

/// Fills a vector of f32.
pub const FILL_VECTOR: &Signature = &Signature {
    function: "fill_vector",
    arguments: "FillVector",
    header: "core/fill.cuh",
    config: Config::None,
    parameters: &[
        parameter("values", "float*"),
        parameter("count", "long long"),
        parameter("centre", "float"),
        parameter("deviation", "float"),
        parameter("seed", "unsigned long long"),
    ],
    declarations: "",
    checks: &[],
    body: "fill_vector(values, count, centre, deviation, seed);",
};

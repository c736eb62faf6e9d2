//! Kernels of whole rows.

use crate::kernels::{Declared, Header, LIMIT, NORM, Rows, Vector, constants, kernels};

/// The norm of what is added to, and whether a stored number multiplies the sum.
const SUM: &[Declared] = constants![WIDTH: int, OWN: Norm, OWN_EPS: float, SCALED: bool];
/// What works on every element by itself.
const EACH: &[Declared] = constants![WIDTH: int, THREADS: int];

kernels! {
    /// Norms rows and adds them to others, which may be normed too.
    add_normed => AddNormed in "rows/add_normed.cuh", [NORM, LIMIT, SUM];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, own: READ Vector, factor: READ Vector,
        out: WRITE Rows,
    )
    check "AddNormedShape<{config}>::THREADS == {block}";

    /// Multiplies rows by a stored number.
    scale_rows => ScaleRows in "rows/each.cuh", [LIMIT, EACH];
    (step: READ Header, factor: READ Vector, x: WRITE Rows)
    check "{config}::THREADS == {block}"
    grid x "each_blocks<{config}>()";

    /// Bounds every element.
    cap_rows => CapRows in "rows/each.cuh", [LIMIT, EACH, constants![CAP: float]];
    (step: READ Header, x: WRITE Rows)
    check "{config}::THREADS == {block}"
    grid x "each_blocks<{config}>()";
}

//! Phases over whole rows between products: norms of what is added, scales, and a bound on logits.

use super::loader::Vector;
use super::normalise::Normalise;
use super::rows::Rows;
use super::simd::{F32s, LANES, TILE, at};
use super::team::Lane;

/// Elements of a row that a lane bounds at a time: a row of logits is shared out to all lanes.
const BOUNDED: usize = 256;

/// Adds the norm of each of the first `rows` rows of `x` to that of `residual`.
pub fn add_normed<M: Normalise<N>, const N: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<N>,
    norm: &M,
    residual: &Rows<N>,
) {
    for row in lane.share(rows) {
        // SAFETY: no lane writes `x` in this phase.
        let x = unsafe { x.padded(row) };
        let scale = norm.scale(x);
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            // SAFETY: the shares of the lanes are disjoint.
            let out = unsafe { residual.vector_mut(row, from) };
            (F32s::load(out) + norm.apply(F32s::load(at(x, from)), from, scale)).store(out);
        }
    }
    lane.barrier();
}

/// Norms each of the first `rows` rows of `sum` by `own`, and adds the norm of that of `x`.
pub fn sum_normed<M: Normalise<N>, O: Normalise<N>, const N: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<N>,
    norm: &M,
    sum: &Rows<N>,
    own: &O,
) {
    for row in lane.share(rows) {
        // SAFETY: no lane writes `x` in this phase, and the shares of the lanes are disjoint.
        let (x, before) = unsafe { (x.padded(row), sum.padded(row)) };
        let (scale, own_scale) = (norm.scale(x), own.scale(before));
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            // SAFETY: the shares of the lanes are disjoint; what is read of the row was read before.
            let out = unsafe { sum.vector_mut(row, from) };
            let normed = own.apply(F32s::load(out), from, own_scale);
            (normed + norm.apply(F32s::load(at(x, from)), from, scale)).store(out);
        }
    }
    lane.barrier();
}

/// Multiplies the first `rows` rows by a number.
pub fn scale<const N: usize>(lane: &Lane, rows: usize, factor: f32, x: &Rows<N>) {
    let factor = F32s::splat(factor);
    for row in lane.share(rows) {
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            // SAFETY: the shares of the lanes are disjoint.
            let x = unsafe { x.vector_mut(row, from) };
            (F32s::load(x) * factor).store(x);
        }
    }
    lane.barrier();
}

/// [`scale`] by a stored number.
pub fn scale_by<const N: usize>(lane: &Lane, rows: usize, factor: &Vector<1>, x: &Rows<N>) {
    scale(lane, rows, factor.padded()[0], x);
}

/// Bounds the elements of the first `rows` rows: `cap * tanh(x / cap)`.
pub fn cap<const N: usize>(lane: &Lane, rows: usize, cap: f32, x: &Rows<N>) {
    let parts = N.div_ceil(BOUNDED);
    for part in lane.share(rows * parts) {
        let (row, from) = (part / parts, part % parts * BOUNDED);
        // SAFETY: the shares of the lanes are disjoint.
        let x = unsafe { x.part_mut(row, from, BOUNDED.min(N - from)) };
        x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    }
    lane.barrier();
}

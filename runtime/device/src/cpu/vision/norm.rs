//! Norms of towers that models of text have not.

use super::super::loader::Vector;
use super::super::normalise::Normalise;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, TILE, at};
use super::super::team::Lane;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over `N` elements (Ba, Kiros & Hinton, 2016): weight,
/// bias, and what is added to the variance.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a, const N: usize>(pub &'a Vector<N>, pub &'a Vector<N>, pub f32);

impl<const N: usize> Normalise<N> for LayerNorm<'_, N> {
    const IDENTITY: bool = false;
    /// The mean, and one over the deviation.
    type Scale = (f32, f32);

    #[inline(always)]
    fn scale(&self, x: &[f32]) -> (f32, f32) {
        let mut sum = F32s::zero();
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            sum = sum + F32s::load(at(x, from));
        }
        let mean = sum.sum() / N as f32;
        // Of differences from the mean: squares of the numbers themselves would cancel.
        let mut squares = F32s::zero();
        for from in (0..N).step_by(LANES) {
            let mut apart = F32s::load(at(x, from)) - F32s::splat(mean);
            if N - from < LANES {
                apart = apart.keep(N - from, 0.0);
            }
            squares = apart.mul_add(apart, squares);
        }
        (mean, 1.0 / (squares.sum() / N as f32 + self.2).sqrt())
    }

    #[inline(always)]
    fn apply(&self, x: F32s, from: usize, (mean, inverse): (f32, f32)) -> F32s {
        // Padding stays zero: weight and bias have zeros there.
        let unit = (x - F32s::splat(mean)) * F32s::splat(inverse);
        unit.mul_add(F32s::load(at(self.0.padded(), from)), F32s::load(at(self.1.padded(), from)))
    }
}

/// Norms each of the first `rows` rows of `x`.
pub fn norm_in_place<P: Normalise<N>, const N: usize>(lane: &Lane, rows: usize, norm: &P, x: &Rows<N>) {
    for row in lane.share(rows) {
        // SAFETY: the shares of the lanes are disjoint, and the row is not written meanwhile.
        let scale = norm.scale(unsafe { x.padded(row) });
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            // SAFETY: the shares of the lanes are disjoint.
            let out = unsafe { x.vector_mut(row, from) };
            norm.apply(F32s::load(out), from, scale).store(out);
        }
    }
    lane.barrier();
}

//! What a product does to its rows before it reads them.

use super::simd::F32s;

/// The transformation of a row of `N` activations before a product.
#[doc(hidden)]
pub trait Normalise<const N: usize>: Sync {
    /// Whether rows pass unchanged.
    const IDENTITY: bool;

    /// The property of the whole (padded) row that [`Normalise::apply`] needs.
    fn scale(&self, x: &[f32]) -> f32;

    /// The vector at `at` of the row, normalised.
    fn apply(&self, x: F32s, at: usize, scale: f32) -> F32s;
}

/// Rows pass unchanged.
#[derive(Clone, Copy, Debug)]
pub struct NoNorm;

impl<const N: usize> Normalise<N> for NoNorm {
    const IDENTITY: bool = true;

    #[inline(always)]
    fn scale(&self, _: &[f32]) -> f32 {
        1.0
    }

    #[inline(always)]
    fn apply(&self, x: F32s, _: usize, _: f32) -> F32s {
        x
    }
}

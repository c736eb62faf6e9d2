//! What a product does to its rows before it reads them.

use super::simd::F32s;

/// The transformation of a row of `N` activations before a product.
#[doc(hidden)]
pub trait Normalise<const N: usize>: Sync {
    /// Whether rows pass unchanged.
    const IDENTITY: bool;

    /// What [`Normalise::apply`] needs to know of the whole row.
    type Scale: Copy;

    /// Finds it out of the (padded) row.
    fn scale(&self, x: &[f32]) -> Self::Scale;

    /// The vector at `at` of the row, normalised.
    fn apply(&self, x: F32s, at: usize, scale: Self::Scale) -> F32s;
}

/// Rows pass unchanged.
#[derive(Clone, Copy, Debug)]
pub struct NoNorm;

impl<const N: usize> Normalise<N> for NoNorm {
    const IDENTITY: bool = true;
    type Scale = ();

    #[inline(always)]
    fn scale(&self, _: &[f32]) {}

    #[inline(always)]
    fn apply(&self, x: F32s, _: usize, (): ()) -> F32s {
        x
    }
}

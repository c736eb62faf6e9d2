//! RMS norm, fused in front of products.

use super::loader::{Loader, Part, Vector};
use super::normalise::Normalise;
use super::simd::{F32s, LANES, TILE, at};
use monomorph_weights::WeightsError;
use std::marker::PhantomData;

/// How a norm applies its weights.
pub trait NormWeight: Send + Sync + 'static {
    /// The factor for a stored weight.
    #[doc(hidden)]
    fn factor(weight: f32) -> f32;
}

/// Times `w`.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// Times `1 + w`.
#[derive(Clone, Copy, Debug)]
pub struct OnePlus;

impl NormWeight for Plain {
    fn factor(weight: f32) -> f32 {
        weight
    }
}

impl NormWeight for OnePlus {
    fn factor(weight: f32) -> f32 {
        1.0 + weight
    }
}

/// RMS norm over `N` elements: `x / sqrt(mean(x²) + eps) * factor` in f32, with the factors computed from the
/// weights at load.
#[derive(Debug)]
pub struct RmsNorm<K, const N: usize> {
    factors: Vector<N>,
    eps: f32,
    weight: PhantomData<K>,
}

impl<K: NormWeight, const N: usize> RmsNorm<K, N> {
    /// Reads the weights `[N]` from any float format.
    ///
    /// # Errors
    /// When the tensor has another shape or is quantised.
    pub fn load(loader: &Loader, tensor: &Part, eps: f32) -> Result<Self, WeightsError> {
        let mut factors = Vector::load(loader, std::slice::from_ref(tensor))?;
        factors.map(K::factor);
        Ok(RmsNorm { factors, eps, weight: PhantomData })
    }

    /// Normalises one vector in place.
    #[inline]
    pub(crate) fn normalise(&self, x: &mut [f32; N]) {
        // One running sum per lane position, as in `scale` on padded rows.
        let mut sums = [0.0f32; TILE];
        for (i, v) in x.iter().enumerate() {
            sums[i % TILE] += v * v;
        }
        let scale = 1.0 / (sums.iter().sum::<f32>() / N as f32 + self.eps).sqrt();
        for (x, factor) in x.iter_mut().zip(self.factors.padded()) {
            *x = *x * scale * factor;
        }
    }
}

impl<K: NormWeight, const N: usize> Normalise<N> for RmsNorm<K, N> {
    const IDENTITY: bool = false;
    type Scale = f32;

    #[inline(always)]
    fn scale(&self, x: &[f32]) -> f32 {
        let mut sum = F32s::zero();
        for i in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            let v = F32s::load(at(x, i));
            sum = v.mul_add(v, sum);
        }
        1.0 / (sum.sum() / N as f32 + self.eps).sqrt()
    }

    #[inline(always)]
    fn apply(&self, x: F32s, from: usize, scale: f32) -> F32s {
        x * F32s::splat(scale) * F32s::load(at(self.factors.padded(), from))
    }
}

//! Rotary position embedding.

use super::batch::Batch;
use super::rows::Rows;
use super::team::Lane;

/// Writes the cosines (first `HALF` elements) and sines of each token's angles, times `factor`, to its row of
/// `out`. The angle of pair `i` at position `p` is `p as f32 * inverse_frequencies[i]` in f32.
///
/// `DIMS` is `2 * HALF`.
pub fn rotary_angles<const HALF: usize, const DIMS: usize>(
    lane: &Lane,
    batch: &Batch,
    inverse_frequencies: &[f32; HALF],
    factor: f32,
    out: &Rows<DIMS>,
) {
    const { assert!(DIMS == 2 * HALF, "a row of angles holds HALF cosines and HALF sines") };
    for row in lane.share(batch.tokens()) {
        let position = batch.positions()[row] as f32;
        // SAFETY: the shares of the lanes are disjoint.
        let (cosines, sines) = unsafe { out.padded_mut(row) }[..DIMS].split_at_mut(HALF);
        for ((frequency, cosine), sine) in inverse_frequencies.iter().zip(cosines).zip(sines) {
            let (s, c) = (position * frequency).sin_cos();
            (*cosine, *sine) = (c * factor, s * factor);
        }
    }
    lane.barrier();
}

/// Which two dimensions of a head rotate together.
pub trait RotaryPairs: Send + Sync + 'static {
    /// Rotates the leading dimensions of `x`, two for each cosine and sine.
    #[doc(hidden)]
    fn turn(x: &mut [f32], cosines: &[f32], sines: &[f32]);
}

/// `(i, i + dims/2)`.
#[derive(Clone, Copy, Debug)]
pub struct Halves;

/// `(2i, 2i + 1)`.
#[derive(Clone, Copy, Debug)]
pub struct Adjacent;

impl RotaryPairs for Halves {
    #[inline(always)]
    fn turn(x: &mut [f32], cosines: &[f32], sines: &[f32]) {
        let (first, rest) = x.split_at_mut(cosines.len());
        for (((a, b), c), s) in first.iter_mut().zip(rest).zip(cosines).zip(sines) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

impl RotaryPairs for Adjacent {
    #[inline(always)]
    fn turn(x: &mut [f32], cosines: &[f32], sines: &[f32]) {
        for (([a, b], c), s) in x.as_chunks_mut().0.iter_mut().zip(cosines).zip(sines) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

//! From the rows of a merge block's patches to one row.

use super::super::loader::Vector;
use super::super::normalise::Normalise;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, TILE, at, at_mut};
use super::super::team::Lane;
use super::rows::Patches;

/// Writes the rows of each block's patches, normed, to one row of `out` (`WIDE = MERGED * N`), side by side.
pub fn merge_patches<P: Normalise<N>, const N: usize, const WIDE: usize>(
    lane: &Lane,
    patches: &Patches,
    x: &Rows<N>,
    norm: &P,
    out: &Rows<WIDE>,
) {
    merge(lane, patches, x, norm, out, |patch, _, channel| patch * N + channel);
}

/// [`merge_patches`], channel by channel: the first number of each of the patches, then their second, and so
/// on.
pub fn merge_channels<P: Normalise<N>, const N: usize, const WIDE: usize>(
    lane: &Lane,
    patches: &Patches,
    x: &Rows<N>,
    norm: &P,
    out: &Rows<WIDE>,
) {
    merge(lane, patches, x, norm, out, |patch, merged, channel| channel * merged + patch);
}

/// Merges rows; `place` says where a patch's number goes: the patch's index in its block, the patches of a
/// block, and the number's channel.
#[inline(always)]
fn merge<P: Normalise<N>, const N: usize, const WIDE: usize>(
    lane: &Lane,
    patches: &Patches,
    x: &Rows<N>,
    norm: &P,
    out: &Rows<WIDE>,
    place: impl Fn(usize, usize, usize) -> usize,
) {
    const { assert!(WIDE.is_multiple_of(N), "a row has those of some patches") };
    let merged = patches.count() / patches.tokens();
    assert!(merged == WIDE / N, "a row has those of {} patches, and a block {merged}", WIDE / N);
    for token in lane.share(patches.tokens()) {
        // SAFETY: the shares of the lanes are disjoint.
        let out = unsafe { out.padded_mut(token) };
        for patch in 0..merged {
            // SAFETY: no lane writes `x` in this phase.
            let x = unsafe { x.padded(token * merged + patch) };
            let scale = norm.scale(x);
            for from in (0..N).step_by(LANES) {
                let normed = norm.apply(F32s::load(at(x, from)), from, scale).to_array();
                for (i, x) in normed.into_iter().take(N - from).enumerate() {
                    out[place(patch, merged, from + i)] = x;
                }
            }
        }
    }
    lane.barrier();
}

/// What becomes of a pooled row before it is normed.
pub trait PooledRow<const N: usize>: Sync {
    /// The vector at `from` of the row.
    #[doc(hidden)]
    fn apply(&self, x: F32s, from: usize) -> F32s;
}

/// It stays as it is.
#[derive(Clone, Copy, Debug)]
pub struct AsPooled;

/// `(x - bias) * scale`: bias and scale.
#[derive(Clone, Copy, Debug)]
pub struct Standardise<'a, const N: usize>(pub &'a Vector<N>, pub &'a Vector<N>);

impl<const N: usize> PooledRow<N> for AsPooled {
    #[inline(always)]
    fn apply(&self, x: F32s, _: usize) -> F32s {
        x
    }
}

impl<const N: usize> PooledRow<N> for Standardise<'_, N> {
    #[inline(always)]
    fn apply(&self, x: F32s, from: usize) -> F32s {
        (x - F32s::load(at(self.0.padded(), from))) * F32s::load(at(self.1.padded(), from))
    }
}

/// Writes the mean of each block's patches, times `factor` and then `standard`, over the root of its mean
/// square plus `eps`.
pub fn pool_patches<S: PooledRow<N>, const N: usize>(
    lane: &Lane,
    patches: &Patches,
    x: &Rows<N>,
    factor: f32,
    standard: &S,
    eps: f32,
    out: &Rows<N>,
) {
    let merged = patches.count() / patches.tokens();
    let factor = F32s::splat(factor / merged as f32);
    for token in lane.share(patches.tokens()) {
        // SAFETY: the shares of the lanes are disjoint.
        let out = unsafe { out.padded_mut(token) };
        let mut squares = F32s::zero();
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            let mut sum = F32s::zero();
            for patch in 0..merged {
                // SAFETY: no lane writes `x` in this phase.
                sum = sum + F32s::load(at(unsafe { x.padded(token * merged + patch) }, from));
            }
            // Padding stays zero.
            let pooled = standard.apply(sum * factor, from);
            squares = pooled.mul_add(pooled, squares);
            pooled.store(at_mut(out, from));
        }
        let scale = F32s::splat(1.0 / (squares.sum() / N as f32 + eps).sqrt());
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            let x = at_mut(out, from);
            (F32s::load(x) * scale).store(x);
        }
    }
    lane.barrier();
}

//! Phases of a text model that takes images.

use super::super::batch::Batch;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, TILE, at};
use super::super::team::Lane;

/// Puts rows of images, of those `kept`, in place of the embeddings of the tokens that stand for them.
///
/// # Panics
/// When fewer rows are kept than the batch's stack has.
pub fn image_rows<const N: usize>(lane: &Lane, batch: &Batch, kept: &Rows<N>, x: &Rows<N>) {
    let images = batch.images();
    assert!(images.kept() <= kept.capacity(), "all rows of images are kept");
    for token in lane.share(batch.tokens()) {
        if let Some(row) = images.row(token, None) {
            // SAFETY: the shares of the lanes are disjoint, and no lane writes what is kept in this phase.
            unsafe { x.padded_mut(token).copy_from_slice(kept.padded(row)) };
        }
    }
    lane.barrier();
}

/// Adds rows of tap `tap` to the tokens that stand for images.
///
/// # Panics
/// As [`image_rows`], and when there is no such tap.
pub fn add_image_rows<const N: usize>(lane: &Lane, batch: &Batch, kept: &Rows<N>, tap: usize, x: &Rows<N>) {
    let images = batch.images();
    assert!(tap < images.taps() && images.kept() <= kept.capacity(), "all rows of taps are kept");
    for token in lane.share(batch.tokens()) {
        let Some(row) = images.row(token, Some(tap)) else { continue };
        // SAFETY: no lane writes what is kept in this phase.
        let row = unsafe { kept.padded(row) };
        for from in (0..N.next_multiple_of(TILE)).step_by(LANES) {
            // SAFETY: the shares of the lanes are disjoint.
            let x = unsafe { x.vector_mut(token, from) };
            (F32s::load(x) + F32s::load(at(row, from))).store(x);
        }
    }
    lane.barrier();
}

/// [`rotary_angles`](super::super::rotary_angles) where positions have three axes: pair `i` turns by axis
/// `axes[i]`, of time, height and width.
pub fn rotary_grid_angles<const HALF: usize, const DIMS: usize>(
    lane: &Lane,
    batch: &Batch,
    inverse_frequencies: &[f32; HALF],
    axes: &[usize; HALF],
    factor: f32,
    out: &Rows<DIMS>,
) {
    const { assert!(DIMS == 2 * HALF, "a row of angles holds HALF cosines and HALF sines") };
    for token in lane.share(batch.tokens()) {
        let position = batch.images().position(token).map(|axis| axis as f32);
        // SAFETY: the shares of the lanes are disjoint.
        let (cosines, sines) = unsafe { out.padded_mut(token) }[..DIMS].split_at_mut(HALF);
        for (pair, (frequency, axis)) in inverse_frequencies.iter().zip(axes).enumerate() {
            let (s, c) = (position[*axis] * frequency).sin_cos();
            (cosines[pair], sines[pair]) = (c * factor, s * factor);
        }
    }
    lane.barrier();
}

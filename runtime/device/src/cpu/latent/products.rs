//! Products of each head's part of rows with a matrix of the head's own.

use super::super::epilogue::Epilogue;
use super::super::format::WeightFormat;
use super::super::linear::{Single, multiply_tile};
use super::super::loader::Matrix;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, MAX_TOKENS};
use super::super::team::Lane;

/// Heads side by side in rows: where a row's first begins, and elements between the starts of two.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, const N: usize> {
    pub(super) rows: &'a Rows<N>,
    pub(super) first: usize,
    pub(super) stride: usize,
}

/// Writes sums to a head's part of rows.
struct IntoHead<'a, const N: usize> {
    out: Heads<'a, N>,
    head: usize,
    /// The row of the first token.
    row: usize,
}

impl<const ROWS: usize, const N: usize> Epilogue<ROWS> for IntoHead<'_, N> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // A head's last tile may be longer than the head.
        let count = LANES.min(ROWS.saturating_sub(from));
        if count == 0 {
            return;
        }
        let column = self.out.first + self.head * self.out.stride + from;
        // SAFETY: the caller's promise, for the elements of this head.
        let out = unsafe { self.out.rows.part_mut(self.row + token, column, count) };
        out.copy_from_slice(&sums.to_array()[..count]);
    }
}

/// `out_h = factor weights_h x_h` for the heads of the first `tokens` rows, where `weights` are a head's
/// tiles of `[OUTPUTS, INPUTS]` and `factor` a row's. `staged`, a lane's own, has room for [`MAX_TOKENS`].
/// Without a barrier.
///
/// A row's sums do not depend on the other rows.
pub(super) fn multiply_heads<
    'w,
    F,
    const INPUTS: usize,
    const OUTPUTS: usize,
    const IN: usize,
    const OUT: usize,
>(
    lane: &Lane,
    (tokens, heads): (usize, usize),
    x: Heads<IN>,
    factor: impl Fn(usize) -> f32,
    weights: impl Fn(usize) -> &'w [u8],
    staged: &Rows<INPUTS>,
    out: Heads<OUT>,
) where
    F: WeightFormat<Input<INPUTS> = Rows<INPUTS>>,
{
    let tiles = Matrix::<F, OUTPUTS, INPUTS>::TILES;
    let mut ready = None;
    for unit in lane.share(tokens.div_ceil(MAX_TOKENS) * heads * tiles) {
        let (at, tile) = (unit / tiles, unit % tiles);
        let (row, head) = (at / heads * MAX_TOKENS, at % heads);
        let count = MAX_TOKENS.min(tokens - row);
        if ready != Some(at) {
            ready = Some(at);
            for token in 0..count {
                // SAFETY: no lane writes `x` in this phase.
                let from = unsafe { x.rows.part(row + token, x.first + head * x.stride, INPUTS) };
                // SAFETY: only this lane uses `staged`.
                let to = unsafe { staged.part_mut(token, 0, INPUTS) };
                let factor = factor(row + token);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = factor * from);
            }
        }
        let epilogue = IntoHead { out, head, row };
        let product = Single::<F, _, OUTPUTS, INPUTS> { input: staged, weights: weights(head), epilogue };
        // SAFETY: each tile of a head's part belongs to one lane, and only this lane writes its input.
        unsafe { multiply_tile(tile, count, &product) };
    }
}

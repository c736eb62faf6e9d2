//! A column tile of a state matrix, small enough for the nearest cache.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::super::simd::{F32s, LANES, at, at_mut, unrolled};

/// Columns of a tile: 16 KiB of a matrix of 128 rows.
pub(in super::super) use monomorph_abi::state::COLUMNS;

/// Vectors per row.
pub(in super::super) const VECTORS: usize = COLUMNS / LANES;

/// One number per column.
pub(in super::super) type Columns = [F32s; VECTORS];

/// A tile's products with a token's key and query.
pub(in super::super) struct Read {
    /// `S^T k`.
    pub(in super::super) by_key: Columns,
    /// `S^T q`.
    pub(in super::super) by_query: Columns,
}

/// The columns at `x[from ..]`.
#[inline(always)]
pub(in super::super) fn columns(x: &[f32], from: usize) -> Columns {
    let x: &[f32; COLUMNS] = at(x, from);
    std::array::from_fn(|c| F32s::load(at(x, c * LANES)))
}

/// 32 columns of a state matrix with `ROWS` rows.
pub(in super::super) struct Tile<'a, const ROWS: usize>(pub(in super::super) &'a mut [[f32; COLUMNS]; ROWS]);

impl<const ROWS: usize> Tile<'_, ROWS> {
    /// Zeroes the tile, as at the start of a sequence.
    pub(in super::super) fn clear(&mut self) {
        self.0.as_flattened_mut().fill(0.0);
    }

    /// Multiplies the tile by a key and a query.
    #[inline(always)]
    pub(in super::super) fn read(&self, key: &[f32; ROWS], query: &[f32; ROWS]) -> Read {
        let (mut by_key, mut by_query) = ([F32s::zero(); VECTORS], [F32s::zero(); VECTORS]);
        for i in 0..ROWS {
            let (k, q) = (F32s::splat(key[i]), F32s::splat(query[i]));
            unrolled!(c < VECTORS, {
                let s = F32s::load(at(&self.0[i], c * LANES));
                by_key[c] = s.mul_add(k, by_key[c]);
                by_query[c] = s.mul_add(q, by_query[c]);
            });
        }
        Read { by_key, by_query }
    }

    /// `S <- decay S + key correction^T`.
    #[inline(always)]
    pub(in super::super) fn update(&mut self, decay: f32, key: &[f32; ROWS], correction: &Columns) {
        let decay = F32s::splat(decay);
        for i in 0..ROWS {
            let k = F32s::splat(key[i]);
            unrolled!(c < VECTORS, {
                let s = F32s::load(at(&self.0[i], c * LANES));
                correction[c].mul_add(k, s * decay).store(at_mut(&mut self.0[i], c * LANES));
            });
        }
    }

    /// [`Tile::update`], followed by [`Tile::read`] for the next token, bit for bit, in one pass.
    #[inline(always)]
    pub(in super::super) fn advance(
        &mut self,
        decay: f32,
        key: &[f32; ROWS],
        correction: &Columns,
        next_key: &[f32; ROWS],
        next_query: &[f32; ROWS],
    ) -> Read {
        let (mut by_key, mut by_query) = ([F32s::zero(); VECTORS], [F32s::zero(); VECTORS]);
        let decay = F32s::splat(decay);
        for i in 0..ROWS {
            let k = F32s::splat(key[i]);
            let (next_k, next_q) = (F32s::splat(next_key[i]), F32s::splat(next_query[i]));
            unrolled!(c < VECTORS, {
                let s = F32s::load(at(&self.0[i], c * LANES));
                let s = correction[c].mul_add(k, s * decay);
                s.store(at_mut(&mut self.0[i], c * LANES));
                by_key[c] = s.mul_add(next_k, by_key[c]);
                by_query[c] = s.mul_add(next_q, by_query[c]);
            });
        }
        Read { by_key, by_query }
    }
}

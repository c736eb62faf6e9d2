//! Phases over whole rows: embedding, gathering the rows that need logits, and arbitrary work.

use super::batch::Batch;
use super::format::WeightFormat;
use super::loader::Matrix;
use super::rows::Rows;
use super::simd::TILE;
use super::team::Lane;

/// Writes the embedding of each token of the batch, a decoded row of `table`, to its row of `out`.
///
/// # Panics
/// When the batch admits ids beyond the table.
pub fn embed<F: WeightFormat, const VOCABULARY: usize, const HIDDEN: usize>(
    lane: &Lane,
    batch: &Batch,
    table: &Matrix<F, VOCABULARY, HIDDEN>,
    out: &Rows<HIDDEN>,
) {
    assert!(batch.limits().vocabulary <= VOCABULARY, "the batch admits token ids beyond the embedding");
    for row in lane.share(batch.tokens()) {
        let id = batch.ids()[row] as usize;
        // SAFETY: the shares of the lanes are disjoint.
        let out = unsafe { out.padded_mut(row) };
        F::unpack(table.tile(id / TILE), id % TILE, &mut out[..HIDDEN]);
    }
    lane.barrier();
}

/// [`embed`], and each embedding multiplied by `scale`.
///
/// # Panics
/// When the batch admits ids beyond the table.
pub fn embed_scaled<F: WeightFormat, const VOCABULARY: usize, const HIDDEN: usize>(
    lane: &Lane,
    batch: &Batch,
    table: &Matrix<F, VOCABULARY, HIDDEN>,
    scale: f32,
    out: &Rows<HIDDEN>,
) {
    embed(lane, batch, table, out);
    super::whole::scale(lane, batch.tokens(), scale, out);
}

/// Copies rows `which` of `from` to rows `0 ..` of `to`.
pub fn gather<const N: usize>(lane: &Lane, which: &[u32], from: &Rows<N>, to: &Rows<N>) {
    for i in lane.share(which.len()) {
        // SAFETY: no lane writes `from` in this phase, and the shares of the lanes are disjoint.
        unsafe { to.padded_mut(i).copy_from_slice(from.padded(which[i] as usize)) };
    }
    lane.barrier();
}

/// Calls `work` with each of the first `count` rows, each on one lane.
pub fn each_row<const N: usize>(
    lane: &Lane,
    count: usize,
    rows: &Rows<N>,
    work: impl Fn(usize, &mut [f32; N]),
) {
    for row in lane.share(count) {
        // SAFETY: the shares of the lanes are disjoint.
        let values = unsafe { rows.padded_mut(row) };
        work(row, super::simd::at_mut(values, 0));
    }
    lane.barrier();
}

//! The input of a draft head.

use super::super::batch::Batch;
use super::super::format::WeightFormat;
use super::super::loader::Matrix;
use super::super::norm::{NormWeight, RmsNorm};
use super::super::rows::Rows;
use super::super::simd::{TILE, at_mut};
use super::super::team::Lane;

/// Writes `[embedding_norm(table[id]) | hidden_norm(norm(x))]` for each row of the batch, whose ids are those
/// of the following tokens.
///
/// # Panics
/// When the batch admits ids beyond the table.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn draft_embed<F, K, const VOCABULARY: usize, const HIDDEN: usize, const JOINED: usize>(
    lane: &Lane,
    batch: &Batch,
    x: &Rows<HIDDEN>,
    norm: &RmsNorm<K, HIDDEN>,
    hidden_norm: &RmsNorm<K, HIDDEN>,
    table: &Matrix<F, VOCABULARY, HIDDEN>,
    embedding_norm: &RmsNorm<K, HIDDEN>,
    out: &Rows<JOINED>,
) where
    F: WeightFormat,
    K: NormWeight,
{
    const { assert!(JOINED == 2 * HIDDEN, "two rows side by side") };
    assert!(batch.limits().vocabulary <= VOCABULARY, "the batch admits token ids beyond the embedding");
    for row in lane.share(batch.tokens()) {
        let id = batch.ids()[row] as usize;
        // SAFETY: no lane writes `x` in this phase, and the shares of the lanes are disjoint.
        let (x, out) = unsafe { (x.padded(row), out.padded_mut(row)) };
        let (following, hidden) = out[..JOINED].split_at_mut(HIDDEN);
        F::unpack(table.tile(id / TILE), id % TILE, following);
        embedding_norm.normalise(at_mut(following, 0));
        hidden.copy_from_slice(&x[..HIDDEN]);
        norm.normalise(at_mut(hidden, 0));
        hidden_norm.normalise(at_mut(hidden, 0));
    }
    lane.barrier();
}

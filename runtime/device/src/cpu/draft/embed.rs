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
    assert!(batch.limits().vocabulary <= VOCABULARY, "the batch admits token ids beyond the embedding");
    let embed = |row: usize, following: &mut [f32]| unpack(batch, table, row, following);
    join(lane, batch, x, norm, hidden_norm, embedding_norm, out, embed);
}

/// The same of a stack with a vision tower: where a following token stands for a part of an image, its row,
/// of those `kept`, is in place of its embedding.
///
/// # Panics
/// As [`draft_embed`], and when fewer rows are kept than the batch's stack has.
#[expect(clippy::too_many_arguments, reason = "as above")]
pub fn draft_embed_images<F, K, const VOCABULARY: usize, const HIDDEN: usize, const JOINED: usize>(
    lane: &Lane,
    batch: &Batch,
    x: &Rows<HIDDEN>,
    norm: &RmsNorm<K, HIDDEN>,
    hidden_norm: &RmsNorm<K, HIDDEN>,
    table: &Matrix<F, VOCABULARY, HIDDEN>,
    embedding_norm: &RmsNorm<K, HIDDEN>,
    kept: &Rows<HIDDEN>,
    out: &Rows<JOINED>,
) where
    F: WeightFormat,
    K: NormWeight,
{
    assert!(batch.limits().vocabulary <= VOCABULARY, "the batch admits token ids beyond the embedding");
    let images = batch.images();
    assert!(images.kept() <= kept.capacity(), "all rows of images are kept");
    let embed = |row: usize, following: &mut [f32]| match images.row(row, None) {
        // SAFETY: no lane writes what is kept in this phase.
        Some(kept_row) => following.copy_from_slice(&unsafe { kept.padded(kept_row) }[..HIDDEN]),
        None => unpack(batch, table, row, following),
    };
    join(lane, batch, x, norm, hidden_norm, embedding_norm, out, embed);
}

/// The embedding of a row's id.
fn unpack<F: WeightFormat, const VOCABULARY: usize, const HIDDEN: usize>(
    batch: &Batch,
    table: &Matrix<F, VOCABULARY, HIDDEN>,
    row: usize,
    out: &mut [f32],
) {
    let id = batch.ids()[row] as usize;
    F::unpack(table.tile(id / TILE), id % TILE, out);
}

/// Norms what `embed` writes for each row, and its hidden state, side by side.
#[expect(clippy::too_many_arguments, reason = "as above")]
fn join<K: NormWeight, const HIDDEN: usize, const JOINED: usize>(
    lane: &Lane,
    batch: &Batch,
    x: &Rows<HIDDEN>,
    norm: &RmsNorm<K, HIDDEN>,
    hidden_norm: &RmsNorm<K, HIDDEN>,
    embedding_norm: &RmsNorm<K, HIDDEN>,
    out: &Rows<JOINED>,
    embed: impl Fn(usize, &mut [f32]),
) {
    const { assert!(JOINED == 2 * HIDDEN, "two rows side by side") };
    for row in lane.share(batch.tokens()) {
        // SAFETY: no lane writes `x` in this phase, and the shares of the lanes are disjoint.
        let (x, out) = unsafe { (x.padded(row), out.padded_mut(row)) };
        let (following, hidden) = out[..JOINED].split_at_mut(HIDDEN);
        embed(row, following);
        embedding_norm.normalise(at_mut(following, 0));
        hidden.copy_from_slice(&x[..HIDDEN]);
        norm.normalise(at_mut(hidden, 0));
        hidden_norm.normalise(at_mut(hidden, 0));
    }
    lane.barrier();
}

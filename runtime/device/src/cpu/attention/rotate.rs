//! First half of attention: normalises and rotates queries and keys, and writes the cache.

use super::super::batch::Batch;
use super::super::kept::{KvCodes, KvKept};
use super::super::kv::{KvCache, rotation};
use super::super::norm::{NormWeight, RmsNorm};
use super::super::normalise::NoNorm;
use super::super::rotary::RotaryPairs;
use super::super::rows::Rows;
use super::super::simd::{TILE, at, at_mut};
use super::super::team::Lane;

/// The norm of a query or key head before its rotation: none ([`NoNorm`]) or an [`RmsNorm`].
pub trait HeadNorm<const HEAD_DIM: usize>: Sync {
    /// Normalises a head in place.
    #[doc(hidden)]
    fn normalise(&self, head: &mut [f32; HEAD_DIM]);
}

impl<const HEAD_DIM: usize> HeadNorm<HEAD_DIM> for NoNorm {
    #[inline(always)]
    fn normalise(&self, _: &mut [f32; HEAD_DIM]) {}
}

impl<K: NormWeight, const HEAD_DIM: usize> HeadNorm<HEAD_DIM> for RmsNorm<K, HEAD_DIM> {
    #[inline(always)]
    fn normalise(&self, head: &mut [f32; HEAD_DIM]) {
        RmsNorm::normalise(self, head);
    }
}

/// The norm of a head without a weight: what is added to the mean square.
#[derive(Clone, Copy, Debug)]
pub struct BareNorm(pub f32);

impl<const HEAD_DIM: usize> HeadNorm<HEAD_DIM> for BareNorm {
    #[inline(always)]
    fn normalise(&self, head: &mut [f32; HEAD_DIM]) {
        // One running sum per lane position, as norms with weights have.
        let mut sums = [0.0f32; TILE];
        for (i, v) in head.iter().enumerate() {
            sums[i % TILE] += v * v;
        }
        let scale = 1.0 / (sums.iter().sum::<f32>() / HEAD_DIM as f32 + self.0).sqrt();
        head.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Normalises all query heads of a row together, and all its key heads, in place: what models do that norm
/// before they take heads apart. [`attention`](super::attention) with [`NoNorm`] follows. Ends with a
/// barrier.
pub fn norm_rows<Q: NormWeight, K: NormWeight, const QUERIES: usize, const KEYS: usize, const QKV: usize>(
    lane: &Lane,
    batch: &Batch,
    qkv: &Rows<QKV>,
    q_norm: &RmsNorm<Q, QUERIES>,
    k_norm: &RmsNorm<K, KEYS>,
) {
    const { assert!(QUERIES + 2 * KEYS <= QKV, "keys and values come last") };
    for row in lane.share(batch.tokens()) {
        // SAFETY: each row belongs to one lane, and the ranges are disjoint.
        let [queries, keys] =
            unsafe { [qkv.part_mut(row, 0, QUERIES), qkv.part_mut(row, QKV - 2 * KEYS, KEYS)] };
        q_norm.normalise(at_mut(queries, 0));
        k_norm.normalise(at_mut(keys, 0));
    }
    lane.barrier();
}

/// Normalises and rotates queries (in place) and keys, normalises values, and writes keys and values; ends
/// with a barrier.
#[expect(clippy::too_many_arguments, reason = "the arguments of `attention`")]
pub(super) fn rotate_and_write<
    E: KvKept,
    Q: HeadNorm<HEAD_DIM>,
    K: HeadNorm<HEAD_DIM>,
    V: HeadNorm<HEAD_DIM>,
    P: RotaryPairs,
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const BLOCK: usize,
    const QKV: usize,
    const DIMS: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    qkv: &Rows<QKV>,
    q_norm: &Q,
    k_norm: &K,
    v_norm: &V,
    angles: &Rows<DIMS>,
    _: &P,
    cache: &KvCache<E, KV_HEADS, HEAD_DIM, BLOCK>,
) {
    let group = HEADS / KV_HEADS;
    // Scores are those of the keys as they are stored.
    let stored = rotation::<HEAD_DIM>(E::Keys::FORMAT);
    // Keys and values take as much work as queries, so the unit is a K/V head with its queries.
    for unit in lane.share(batch.tokens() * KV_HEADS) {
        let (row, head) = (unit / KV_HEADS, unit % KV_HEADS);
        // SAFETY: no lane writes angles in this phase.
        let (cosines, sines) = unsafe { &angles.padded(row)[..DIMS] }.split_at(DIMS / 2);
        for query in head * group..(head + 1) * group {
            // SAFETY: each query head is rotated by one lane.
            let x = at_mut(unsafe { qkv.part_mut(row, query * HEAD_DIM, HEAD_DIM) }, 0);
            q_norm.normalise(x);
            P::turn(x, cosines, sines);
            if let Some(stored) = stored {
                stored.apply(x);
            }
        }
        // Keys and values come last, with or without gates before them. A row without values has keys for
        // them.
        let own_values = const { QKV > (HEADS + KV_HEADS) * HEAD_DIM };
        let values = if own_values { KV_HEADS * HEAD_DIM } else { 0 };
        let width = KV_HEADS * HEAD_DIM + values;
        // SAFETY: no lane writes the key and value heads in this phase; the range excludes the queries before
        // them.
        let rest = unsafe { qkv.part(row, QKV - width, width) };
        let mut key: [f32; HEAD_DIM] = *at(rest, head * HEAD_DIM);
        k_norm.normalise(&mut key);
        P::turn(&mut key, cosines, sines);
        let mut value: [f32; HEAD_DIM] = *at(rest, values + head * HEAD_DIM);
        v_norm.normalise(&mut value);
        let sequence = batch.sequence_of(row);
        let position = batch.positions()[row] as usize;
        let block = cache.table(batch, sequence).at(position / BLOCK);
        // SAFETY: sequences do not share the blocks they write, and each head of a token belongs to one lane.
        unsafe { cache.write((layer, block, head), position % BLOCK, &key, &value) };
    }
    lane.barrier();
}

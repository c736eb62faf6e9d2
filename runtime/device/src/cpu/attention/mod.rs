//! Causal grouped-query attention over the paged cache.
//!
//! A context is processed in segments of [`SEGMENT`] keys: within a segment first scores, then softmax, then
//! the sum of values; segments are merged in order. Segments begin at fixed positions, so a row's result
//! depends only on its query and its keys and values, not on the other rows of the step, the split of the
//! prompt into prefill chunks, the number of lanes, or which blocks are on disk. In a step with blocks on
//! disk, segments are staged window by window, and the states of its rows are kept in between.

mod items;
mod rotate;
mod segment;
mod work;

use super::batch::Batch;
use super::kept::KvKept;
use super::kv::KvCache;
use super::memory::Memory;
use super::normalise::NoNorm;
use super::rotary::RotaryPairs;
use super::rows::Rows;
use super::shape::SEGMENT;
use super::simd::{QUERY_ROWS, TILE};
use super::team::Lane;
pub use rotate::{BareNorm, HeadNorm, norm_rows};
pub(super) use segment::{Gathered, Tile, merge};
pub(super) use work::Work;

/// Most query rows (tokens times heads of a group) of an item, unless one token has more.
const ITEM_ROWS: usize = 96;

/// Rows of an item from which on keys and values are widened to f32 once, in advance.
const GATHER_ROWS: usize = 12;

/// Items there should be for each lane; with fewer, contexts are split.
const ITEMS_PER_LANE: usize = 4;

/// Scratch memory of [`attention`]; layers may share one.
pub type AttentionScratch<const HEADS: usize, const KV_HEADS: usize, const HEAD_DIM: usize> =
    SegmentScratch<HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM>;

/// Scratch memory of attention with values of `VALUE` elements; layers may share one.
#[derive(Debug)]
pub struct SegmentScratch<
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const VALUE: usize,
> {
    lanes: Vec<LaneScratch>,
    /// One state per row and segment, for split contexts.
    partials: Memory<f32>,
    /// One state per row, kept between windows of blocks on disk: `[KV_HEADS][tokens][GROUP]`.
    carried: Memory<f32>,
    /// Most tokens of a step with blocks on disk.
    tokens: usize,
}

/// Scratch memory of one lane.
#[derive(Debug)]
struct LaneScratch {
    /// Keys of a segment, `[HEAD_DIM][SEGMENT]`.
    keys: Memory<f32>,
    /// Values of a segment, `[SEGMENT][VALUE rounded up to 16]`.
    values: Memory<f32>,
    /// Scores of a tile of query rows, `[QUERY_ROWS][SEGMENT]`.
    scores: Memory<f32>,
    /// One state for each row of an item, followed by one for each row of the current tile.
    states: Memory<f32>,
}

impl<const HEADS: usize, const KV_HEADS: usize, const HEAD_DIM: usize, const VALUE: usize>
    SegmentScratch<HEADS, KV_HEADS, HEAD_DIM, VALUE>
{
    /// Query heads that share a K/V head.
    const GROUP: usize = {
        assert!(KV_HEADS > 0 && HEADS.is_multiple_of(KV_HEADS), "query heads are a multiple of K/V heads");
        HEADS / KV_HEADS
    };
    /// Tokens of an item.
    const TOKENS: usize = if Self::GROUP > ITEM_ROWS { 1 } else { ITEM_ROWS / Self::GROUP };
    /// Length of a head's values, padded.
    const WIDTH: usize = VALUE.next_multiple_of(TILE);
    /// Elements of a row's state: largest score, sum of weights, and (from 16 on) the weighted sum of values.
    const STATE: usize = TILE + Self::WIDTH;

    /// Scratch for a team of `lanes` and contexts of up to `context` tokens.
    pub fn new(lanes: usize, context: usize) -> Self {
        let split = lanes * ITEMS_PER_LANE * Self::GROUP * context.div_ceil(SEGMENT);
        let scratch = || LaneScratch {
            keys: Memory::zeroed(HEAD_DIM * SEGMENT),
            values: Memory::zeroed(SEGMENT * Self::WIDTH),
            scores: Memory::zeroed(QUERY_ROWS * SEGMENT),
            states: Memory::zeroed((Self::TOKENS * Self::GROUP + QUERY_ROWS) * Self::STATE),
        };
        SegmentScratch {
            lanes: (0..lanes).map(|_| scratch()).collect(),
            partials: Memory::zeroed(split * Self::STATE),
            carried: Memory::zeroed(0),
            tokens: 0,
        }
    }

    /// Adds room for steps of up to `tokens` tokens whose sequences have blocks on disk.
    #[must_use]
    pub fn streamed(self, tokens: usize) -> Self {
        SegmentScratch { carried: Memory::zeroed(HEADS * tokens * Self::STATE), tokens, ..self }
    }
}

/// Attention of one layer: normalises (if asked) and rotates queries and keys, writes keys and values to the
/// cache, and attends.
///
/// A row of `qkv` (`QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM`) holds the query heads, the key heads, then the
/// value heads; queries are changed in place. `angles` come from [`super::rotary_angles`] and rotate the
/// leading `DIMS` dimensions of a head. Scores are multiplied by `scale`. A row of `out`
/// (`OUT = HEADS * HEAD_DIM`) receives the heads' results.
///
/// If `QKV` is `(2 * HEADS + 2 * KV_HEADS) * HEAD_DIM`, the query heads are followed by a gate for each,
/// before the key heads, and each element of a result is multiplied by its gate's sigmoid.
///
/// # Panics
/// When the batch was made for another block size or for more blocks than the cache has, or there is no such
/// layer.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn attention<
    E,
    Q,
    K,
    P,
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const BLOCK: usize,
    const QKV: usize,
    const OUT: usize,
    const DIMS: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    qkv: &Rows<QKV>,
    q_norm: &Q,
    k_norm: &K,
    angles: &Rows<DIMS>,
    pairs: P,
    scale: f32,
    cache: &KvCache<E, KV_HEADS, HEAD_DIM, BLOCK>,
    scratch: &AttentionScratch<HEADS, KV_HEADS, HEAD_DIM>,
    out: &Rows<OUT>,
) where
    E: KvKept,
    Q: HeadNorm<HEAD_DIM>,
    K: HeadNorm<HEAD_DIM>,
    P: RotaryPairs,
{
    const {
        assert!(QKV > (HEADS + KV_HEADS) * HEAD_DIM, "a row of qkv holds values");
    }
    let (v_norm, window) = (&NoNorm, usize::MAX);
    attention_within(
        lane, batch, layer, qkv, q_norm, k_norm, v_norm, angles, pairs, scale, window, cache, scratch, out,
    );
}

/// What a row attends to.
pub trait Seen: Copy {
    /// Positions up to its own, its own among them.
    #[doc(hidden)]
    fn window(self) -> usize;

    /// By row of the batch: the last position.
    #[doc(hidden)]
    fn ends(batch: &Batch) -> &[u32];
}

/// So many of the last positions.
impl Seen for usize {
    fn window(self) -> usize {
        self
    }

    fn ends(batch: &Batch) -> &[u32] {
        batch.positions()
    }
}

/// The same, and those behind that stand for the same image.
#[derive(Clone, Copy, Debug)]
pub struct WholeImages(pub usize);

impl Seen for WholeImages {
    fn window(self) -> usize {
        self.0
    }

    fn ends(batch: &Batch) -> &[u32] {
        batch.images().ends()
    }
}

/// The same, and those behind that stand in the same block of a drafter.
#[derive(Clone, Copy, Debug)]
pub struct WholeBlock(pub usize);

impl Seen for WholeBlock {
    fn window(self) -> usize {
        self.0
    }

    fn ends(batch: &Batch) -> &[u32] {
        batch.block_ends()
    }
}

/// What a layer of a drafter keeps of the batch's rows, without attending: normalises and rotates keys, and
/// writes keys and values to the cache. A row of `kv` (`KV = 2 * KV_HEADS * HEAD_DIM`) holds the key heads,
/// then the value heads; the rest is as of [`attention`].
///
/// # Panics
/// As [`attention`].
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn keep_context<
    E,
    K,
    P,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const BLOCK: usize,
    const KV: usize,
    const DIMS: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    kv: &Rows<KV>,
    k_norm: &K,
    angles: &Rows<DIMS>,
    pairs: P,
    cache: &KvCache<E, KV_HEADS, HEAD_DIM, BLOCK>,
) where
    E: KvKept,
    K: HeadNorm<HEAD_DIM>,
    P: RotaryPairs,
{
    const {
        assert!(KV == 2 * KV_HEADS * HEAD_DIM, "a row holds key heads and value heads");
        assert!(DIMS <= HEAD_DIM, "no more dimensions turn than a head has");
    }
    cache.check(batch, layer);
    // Of no query heads.
    rotate::rotate_and_write::<E, NoNorm, K, NoNorm, P, 0, KV_HEADS, HEAD_DIM, BLOCK, KV, DIMS>(
        lane, batch, layer, kv, &NoNorm, k_norm, &NoNorm, angles, &pairs, cache,
    );
}

/// [`attention`] over the last `window` positions of a sequence, a row's own among them, with a norm of
/// values. Of a [sliding](KvCache::sliding) cache it reads only the blocks that hold these.
///
/// If `QKV` is `(HEADS + KV_HEADS) * HEAD_DIM`, a row has no values: they are what keys are made of, before
/// it is normed and rotated.
///
/// # Panics
/// As [`attention`].
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn attention_within<
    E,
    Q,
    K,
    V,
    P,
    S,
    const HEADS: usize,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const BLOCK: usize,
    const QKV: usize,
    const OUT: usize,
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
    pairs: P,
    scale: f32,
    window: S,
    cache: &KvCache<E, KV_HEADS, HEAD_DIM, BLOCK>,
    scratch: &AttentionScratch<HEADS, KV_HEADS, HEAD_DIM>,
    out: &Rows<OUT>,
) where
    E: KvKept,
    Q: HeadNorm<HEAD_DIM>,
    K: HeadNorm<HEAD_DIM>,
    V: HeadNorm<HEAD_DIM>,
    P: RotaryPairs,
    S: Seen,
{
    const {
        assert!(
            QKV == (HEADS + 2 * KV_HEADS) * HEAD_DIM
                || QKV == 2 * (HEADS + KV_HEADS) * HEAD_DIM
                || QKV == (HEADS + KV_HEADS) * HEAD_DIM,
            "a row of qkv holds all heads, with or without a gate for each query head, or queries and keys"
        );
        assert!(OUT == HEADS * HEAD_DIM, "a row of results holds the query heads");
        assert!(DIMS <= HEAD_DIM, "no more dimensions turn than a head has");
    }
    cache.check(batch, layer);
    rotate::rotate_and_write::<E, Q, K, V, P, HEADS, KV_HEADS, HEAD_DIM, BLOCK, QKV, DIMS>(
        lane, batch, layer, qkv, q_norm, k_norm, v_norm, angles, &pairs, cache,
    );
    let (ends, window) = (S::ends(batch), window.window());
    let work = Work { batch, layer, qkv, scale, ends, window, cache, scratch, out };
    work.run(lane);
}

//! Attention over latents: the cache has one vector a token and layer, of which every head's key and value
//! are made, and a rotated key that all heads share (DeepSeek-AI, "DeepSeek-V2", 2024).
//!
//! A head's key is `K c` and its value `V c` for the latent `c` of a token. Here they are never made: a score
//! is `q (K c) = (K^T q) c`, and a sum of values `V` times the sum of latents. So all heads read the same
//! keys, which are the latents with their rotated keys behind them, and whose leading part are the values;
//! that is attention with one K/V head, whose segments and merges it shares. In prefill as in decode, so that
//! a row's result does not depend on how a prompt is cut.
//!
//! In formats of codes only latents have codes: rotated keys are kept as bf16 beside them. Where latents are
//! stored rotated so are the products `K^T q`, and sums of latents are rotated back before `V`.

mod heads;
mod products;

use super::attention::{SegmentScratch, Work};
use super::batch::Batch;
use super::format::WeightFormat;
use super::kept::{KvCodes, KvKept};
use super::kv::{LatentCache, rotation};
use super::norm::{NormWeight, RmsNorm};
use super::rotary::RotaryPairs;
use super::rows::Rows;
use super::simd::{MAX_TOKENS, at, at_mut};
use super::team::Lane;
pub use heads::LatentHeads;
use products::{Heads, multiply_heads};

/// What multiplies queries: `1 + growth ln(1 + floor(position / original))`, in f32.
#[derive(Clone, Copy, Debug)]
pub struct QueryScale {
    /// 0 multiplies by 1.
    pub growth: f32,
    /// Positions up to which queries are multiplied by 1.
    pub original: u32,
}

impl QueryScale {
    fn at(self, position: u32) -> f32 {
        1.0 + self.growth * ((position / self.original) as f32).ln_1p()
    }
}

/// Scratch memory of [`latent_attention`]; layers may share one. `WIDTH` is that of a latent and its rotated
/// key, `QUERIES` and `CONTEXTS` are `HEADS * WIDTH` and `HEADS * LATENT`.
#[derive(Debug)]
pub struct LatentScratch<
    const HEADS: usize,
    const KEY: usize,
    const WIDTH: usize,
    const LATENT: usize,
    const QUERIES: usize,
    const CONTEXTS: usize,
> {
    segments: SegmentScratch<HEADS, 1, WIDTH, LATENT>,
    /// Queries as latents are multiplied by them, each followed by its rotated part.
    queries: Rows<QUERIES>,
    /// Sums of latents.
    contexts: Rows<CONTEXTS>,
    /// What each lane multiplies.
    staged: Vec<(Rows<KEY>, Rows<LATENT>)>,
}

impl<
    const HEADS: usize,
    const KEY: usize,
    const WIDTH: usize,
    const LATENT: usize,
    const QUERIES: usize,
    const CONTEXTS: usize,
> LatentScratch<HEADS, KEY, WIDTH, LATENT, QUERIES, CONTEXTS>
{
    /// Scratch for a team of `lanes`, contexts of up to `context` tokens and steps of up to `tokens`, whose
    /// sequences may have blocks on disk.
    pub fn new(lanes: usize, context: usize, tokens: usize) -> Self {
        let staged = || (Rows::new(MAX_TOKENS), Rows::new(MAX_TOKENS));
        LatentScratch {
            segments: SegmentScratch::new(lanes, context).streamed(tokens),
            queries: Rows::new(tokens),
            contexts: Rows::new(tokens),
            staged: (0..lanes).map(|_| staged()).collect(),
        }
    }
}

/// Attention over latents of one layer: norms latents, rotates keys and queries, writes the cache, and
/// attends.
///
/// A row of `q` (`Q = HEADS * (KEY + ROTATED)`) holds the heads' queries, `KEY` elements each, then their
/// parts that rotate, `ROTATED` elements each. A row of `kv` (`WIDTH = LATENT + ROTATED`) holds the latent,
/// which `norm` norms, then the one key that rotates. `angles` come from [`super::rotary_angles`]. Queries
/// are multiplied by `growth` of their position, scores by `scale`. A row of `out` (`OUT = HEADS * VALUE`)
/// receives the heads' results.
///
/// # Panics
/// When the batch was made for another block size or for more blocks than the cache has, or there is no such
/// layer.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn latent_attention<
    E,
    F,
    K,
    P,
    const HEADS: usize,
    const KEY: usize,
    const VALUE: usize,
    const LATENT: usize,
    const ROTATED: usize,
    const WIDTH: usize,
    const BLOCK: usize,
    const Q: usize,
    const QUERIES: usize,
    const CONTEXTS: usize,
    const OUT: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    q: &Rows<Q>,
    kv: &Rows<WIDTH>,
    norm: &RmsNorm<K, LATENT>,
    angles: &Rows<ROTATED>,
    pairs: P,
    (growth, scale): (QueryScale, f32),
    heads: &LatentHeads<F, HEADS, KEY, VALUE, LATENT>,
    cache: &LatentCache<E, LATENT, WIDTH, BLOCK>,
    scratch: &LatentScratch<HEADS, KEY, WIDTH, LATENT, QUERIES, CONTEXTS>,
    out: &Rows<OUT>,
) where
    E: KvKept,
    F: WeightFormat<Input<KEY> = Rows<KEY>> + WeightFormat<Input<LATENT> = Rows<LATENT>>,
    K: NormWeight,
    P: RotaryPairs,
{
    const {
        assert!(WIDTH == LATENT + ROTATED, "a latent is followed by its rotated key");
        assert!(Q == HEADS * (KEY + ROTATED), "a row of queries holds all heads");
        assert!(QUERIES == HEADS * WIDTH && CONTEXTS == HEADS * LATENT, "scratch has room for all heads");
        assert!(OUT == HEADS * VALUE, "a row of results holds all heads");
    }
    cache.check(batch, layer);
    let LatentScratch { segments, queries, contexts, staged } = scratch;
    let tokens = batch.tokens();
    let growth = |row: usize| growth.at(batch.positions()[row]);

    write(lane, batch, layer, kv, norm, angles, &pairs, cache);
    rotate::<P, Q, QUERIES, ROTATED>(lane, batch, (HEADS, KEY, LATENT), q, angles, growth, queries);
    let (of_keys, of_values) = &staged[lane.index()];
    multiply_heads::<F, KEY, LATENT, Q, QUERIES>(
        lane,
        (tokens, HEADS),
        Heads { rows: q, first: 0, stride: KEY },
        growth,
        |head| heads.keys(head),
        of_keys,
        Heads { rows: queries, first: 0, stride: WIDTH },
    );
    lane.barrier();
    // Scores are those of the latents as they are stored.
    if let Some(stored) = rotation::<LATENT>(E::Keys::FORMAT) {
        for unit in lane.share(tokens * HEADS) {
            // SAFETY: each head of a row belongs to one lane.
            stored.apply(unsafe { queries.part_mut(unit / HEADS, unit % HEADS * WIDTH, LATENT) });
        }
        lane.barrier();
    }

    let (qkv, window) = (queries, usize::MAX);
    let ends = batch.positions();
    Work { batch, layer, qkv, scale, ends, window, cache, scratch: segments, out: contexts }.run(lane);

    multiply_heads::<F, LATENT, VALUE, CONTEXTS, OUT>(
        lane,
        (tokens, HEADS),
        Heads { rows: contexts, first: 0, stride: LATENT },
        |_| 1.0,
        |head| heads.values(head),
        of_values,
        Heads { rows: out, first: 0, stride: VALUE },
    );
    lane.barrier();
}

/// Norms latents, rotates their keys and writes both to the cache.
#[expect(clippy::too_many_arguments, reason = "the arguments of `latent_attention`")]
fn write<
    E: KvKept,
    K: NormWeight,
    P: RotaryPairs,
    const LATENT: usize,
    const ROTATED: usize,
    const WIDTH: usize,
    const BLOCK: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    kv: &Rows<WIDTH>,
    norm: &RmsNorm<K, LATENT>,
    angles: &Rows<ROTATED>,
    _: &P,
    cache: &LatentCache<E, LATENT, WIDTH, BLOCK>,
) {
    for row in lane.share(batch.tokens()) {
        // SAFETY: no lane writes angles or latents in this phase.
        let (angles, from) = unsafe { (&angles.padded(row)[..ROTATED], kv.padded(row)) };
        let (cosines, sines) = angles.split_at(ROTATED / 2);
        let mut key: [f32; WIDTH] = *at(from, 0);
        norm.normalise(at_mut(&mut key, 0));
        P::turn(&mut key[LATENT..], cosines, sines);
        let sequence = batch.sequence_of(row);
        let position = batch.positions()[row] as usize;
        let block = cache.table(batch, sequence).at(position / BLOCK);
        // SAFETY: sequences do not share the blocks they write, and each token belongs to one lane.
        unsafe { cache.write_key((layer, block, 0), position % BLOCK, &key) };
    }
}

/// Rotates the parts of queries that rotate, and puts each behind its head's place in `queries`.
fn rotate<P: RotaryPairs, const Q: usize, const QUERIES: usize, const ROTATED: usize>(
    lane: &Lane,
    batch: &Batch,
    (heads, key, latent): (usize, usize, usize),
    q: &Rows<Q>,
    angles: &Rows<ROTATED>,
    growth: impl Fn(usize) -> f32,
    queries: &Rows<QUERIES>,
) {
    for unit in lane.share(batch.tokens() * heads) {
        let (row, head) = (unit / heads, unit % heads);
        // SAFETY: no lane writes angles or projections in this phase, and each head of a row belongs to one.
        let (angles, from, to) = unsafe {
            let to = head * (latent + ROTATED) + latent;
            (
                &angles.padded(row)[..ROTATED],
                q.part(row, heads * key + head * ROTATED, ROTATED),
                queries.part_mut(row, to, ROTATED),
            )
        };
        let factor = growth(row);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = factor * from);
        let (cosines, sines) = angles.split_at(ROTATED / 2);
        P::turn(to, cosines, sines);
    }
}

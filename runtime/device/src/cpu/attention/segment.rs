//! Attention of a tile of query rows to one segment of keys.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::super::kept::{KvCodes, KvKept, Unit};
use super::super::simd::{F32s, LANES, TILE, at, at_mut, exp, unrolled};
use super::SEGMENT;
use monomorph_formats::cached::GROUP;

/// The score of a key before a row's window: so low that it weighs nothing beside any other. A row whose
/// window begins after the segment has a state that weighs nothing beside those of later segments.
const OUTSIDE: f32 = -1e30;

/// Key vectors whose scores are computed at a time.
const KEY_VECTORS: usize = if LANES == 16 { 4 } else { 2 };

/// Keys and values of a segment, as vectors of f32.
pub(in super::super) trait KeyValues {
    /// What multiplies codes of some keys in a group of dimensions.
    type By: Copy + Default;

    /// What multiplies the codes of keys `key .. key + LANES` (a multiple of `LANES`) of the segment in group
    /// `group` of dimensions.
    fn scales(&self, group: usize, key: usize) -> Self::By;

    /// Dimensions `d` (which is even) and `d + 1` of the same keys.
    fn keys(&self, d: usize, key: usize, by: Self::By) -> [F32s; 2];

    /// Elements `d .. d + LANES` of the value at `key`.
    fn values(&self, key: usize, d: usize) -> F32s;
}

/// A segment widened to f32 in advance.
pub(in super::super) struct Gathered<'a, const HEAD_DIM: usize, const VALUE: usize> {
    /// `[HEAD_DIM][SEGMENT]`.
    pub(in super::super) keys: &'a [[f32; SEGMENT]; HEAD_DIM],
    /// `[SEGMENT][VALUE rounded up to 16]`.
    pub(in super::super) values: &'a [f32],
}

impl<const HEAD_DIM: usize, const VALUE: usize> KeyValues for Gathered<'_, HEAD_DIM, VALUE> {
    type By = ();

    #[inline(always)]
    fn scales(&self, _: usize, _: usize) {}

    #[inline(always)]
    fn keys(&self, d: usize, key: usize, (): ()) -> [F32s; 2] {
        [F32s::load(at(&self.keys[d], key)), F32s::load(at(&self.keys[d + 1], key))]
    }

    #[inline(always)]
    fn values(&self, key: usize, d: usize) -> F32s {
        F32s::load(at(self.values, key * VALUE.next_multiple_of(TILE) + d))
    }
}

/// A segment as stored in the cache, in groups of 16 tokens.
pub(super) struct Cached<'a, E: KvKept, const BLOCK: usize> {
    /// For each group, the keys of its block from the group's first on.
    pub(super) keys: [Unit<'a, E::Keys>; SEGMENT / TILE],
    /// For each group, the values of its block from the group's first on.
    pub(super) values: [Unit<'a, E::Values>; SEGMENT / TILE],
    /// Elements between the starts of consecutive values.
    pub(super) width: usize,
}

impl<E: KvKept, const BLOCK: usize> Cached<'_, E, BLOCK> {
    /// Element `d` of what follows the codes of keys `key .. key + LANES`.
    #[inline(always)]
    pub(super) fn tails(&self, d: usize, key: usize) -> F32s {
        self.keys[key / TILE].tails(BLOCK, d, key % TILE)
    }
}

impl<E: KvKept, const BLOCK: usize> KeyValues for Cached<'_, E, BLOCK> {
    type By = <E::Keys as KvCodes>::By;

    #[inline(always)]
    fn scales(&self, group: usize, key: usize) -> Self::By {
        E::Keys::key_scales(&self.keys[key / TILE], BLOCK, group, key % TILE)
    }

    #[inline(always)]
    fn keys(&self, d: usize, key: usize, by: Self::By) -> [F32s; 2] {
        E::Keys::keys(&self.keys[key / TILE], BLOCK, d, key % TILE, by)
    }

    #[inline(always)]
    fn values(&self, key: usize, d: usize) -> F32s {
        E::Values::values(&self.values[key / TILE], self.width, key % TILE, d)
    }
}

/// A tile of `R` query rows, of which each sums values of `VALUE` elements.
pub(in super::super) struct Tile<'a, const R: usize, const HEAD_DIM: usize, const VALUE: usize> {
    /// One query vector a row.
    pub(in super::super) queries: [&'a [f32; HEAD_DIM]; R],
    /// How many keys of the segment each row sees, at most [`SEGMENT`].
    pub(in super::super) reach: [usize; R],
    /// How many of these, the first ones, stand before its window.
    pub(in super::super) skip: [usize; R],
    /// Multiplies the scores.
    pub(in super::super) scale: f32,
}

impl<const R: usize, const HEAD_DIM: usize, const VALUE: usize> Tile<'_, R, HEAD_DIM, VALUE> {
    /// Elements of a row's state.
    const STATE: usize = TILE + VALUE.next_multiple_of(TILE);

    /// Writes each row's state to `states` (`R` of them); the state of a row that sees nothing is undefined.
    /// `scores` has room for `[R][SEGMENT]`.
    #[inline]
    pub(in super::super) fn attend(&self, source: &impl KeyValues, scores: &mut [f32], states: &mut [f32]) {
        let most = self.reach.into_iter().max().unwrap_or(0);
        let state = Self::STATE;
        self.scores(source, most, scores);
        for (r, reach) in self.reach.into_iter().enumerate() {
            scores[r * SEGMENT..][..self.skip[r]].fill(OUTSIDE);
            let (largest, sum) = weigh(&mut scores[r * SEGMENT..][..SEGMENT], reach, most);
            states[r * state] = largest;
            states[r * state + 1] = sum;
        }
        let width = state - TILE;
        let mut d = 0;
        while width - d >= 4 * LANES {
            self.sum_values::<4>(source, most, scores, states, d);
            d += 4 * LANES;
        }
        while width - d >= LANES {
            self.sum_values::<1>(source, most, scores, states, d);
            d += LANES;
        }
    }

    /// Scores of the first `most` keys, and possibly of some more, which are meaningless.
    #[inline(always)]
    fn scores(&self, source: &impl KeyValues, most: usize, scores: &mut [f32]) {
        const { assert!(HEAD_DIM.is_multiple_of(2), "dimensions of keys are read in pairs") };
        let scores = &mut scores[..R * SEGMENT];
        for key in (0..most).step_by(KEY_VECTORS * LANES) {
            let mut sums = [[F32s::zero(); KEY_VECTORS]; R];
            for first in (0..HEAD_DIM).step_by(GROUP) {
                // Not by `array::from_fn`, which is called for each vector where what it calls is large.
                let mut by = [Default::default(); KEY_VECTORS];
                unrolled!(j < KEY_VECTORS, {
                    by[j] = source.scales(first / GROUP, key + j * LANES);
                });
                for d in (first..HEAD_DIM.min(first + GROUP)).step_by(2) {
                    let mut keys = [[F32s::zero(); 2]; KEY_VECTORS];
                    unrolled!(j < KEY_VECTORS, {
                        keys[j] = source.keys(d, key + j * LANES, by[j]);
                    });
                    unrolled!(r < R, {
                        for i in 0..2 {
                            let query = F32s::splat(self.queries[r][d + i]);
                            for j in 0..KEY_VECTORS {
                                sums[r][j] = keys[j][i].mul_add(query, sums[r][j]);
                            }
                        }
                    });
                }
            }
            let scale = F32s::splat(self.scale);
            unrolled!(r < R, {
                for j in 0..KEY_VECTORS {
                    (sums[r][j] * scale).store(at_mut(scores, r * SEGMENT + key + j * LANES));
                }
            });
        }
    }

    /// The weighted sums of the values' elements `d ..`, `V` vectors of them.
    #[inline(always)]
    fn sum_values<const V: usize>(
        &self,
        source: &impl KeyValues,
        most: usize,
        scores: &[f32],
        states: &mut [f32],
        d: usize,
    ) {
        let scores: [&[f32; SEGMENT]; R] = std::array::from_fn(|r| at(scores, r * SEGMENT));
        let mut sums = [[F32s::zero(); V]; R];
        for key in 0..most.min(SEGMENT) {
            let mut values = [F32s::zero(); V];
            unrolled!(j < V, {
                values[j] = source.values(key, d + j * LANES);
            });
            unrolled!(r < R, {
                let weight = F32s::splat(scores[r][key]);
                for j in 0..V {
                    sums[r][j] = values[j].mul_add(weight, sums[r][j]);
                }
            });
        }
        let state = Self::STATE;
        unrolled!(r < R, {
            for j in 0..V {
                sums[r][j].store(at_mut(states, r * state + TILE + d + j * LANES));
            }
        });
    }
}

/// Turns the first `reach` scores into weights `e^(score - largest)` and the rest, up to `most`, into zeros;
/// returns the largest score and the sum of the weights.
#[inline(always)]
fn weigh(scores: &mut [f32], reach: usize, most: usize) -> (f32, f32) {
    let minus_infinity = F32s::splat(f32::NEG_INFINITY);
    let mut largest = minus_infinity;
    for key in (0..reach).step_by(LANES) {
        let mut x = F32s::load(at(scores, key));
        if reach - key < LANES {
            x = x.keep(reach - key, f32::NEG_INFINITY);
            x.store(at_mut(scores, key));
        }
        largest = x.max(largest);
    }
    let largest = largest.largest();
    let mut sum = F32s::zero();
    for key in (0..reach).step_by(LANES) {
        let weight = exp(F32s::load(at(scores, key)) - F32s::splat(largest));
        weight.store(at_mut(scores, key));
        sum = sum + weight;
    }
    let written = reach.next_multiple_of(LANES);
    if written < most {
        scores[written..most].fill(0.0);
    }
    (largest, sum.sum())
}

/// Adds a later segment's state to the running one.
#[inline]
pub(in super::super) fn merge(total: &mut [f32], segment: &[f32]) {
    let largest = total[0].max(segment[0]);
    let factors = exp(F32s::splat(total[0] - largest)).to_array()[0];
    let (old, new) = (factors, exp(F32s::splat(segment[0] - largest)).to_array()[0]);
    total[0] = largest;
    total[1] = total[1] * old + segment[1] * new;
    let (old, new) = (F32s::splat(old), F32s::splat(new));
    for d in (TILE..total.len()).step_by(LANES) {
        let sum = F32s::load(at(total, d)) * old;
        F32s::load(at(segment, d)).mul_add(new, sum).store(at_mut(total, d));
    }
}

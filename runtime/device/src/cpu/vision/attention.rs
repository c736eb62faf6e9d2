//! Attention of the patches of a segment to all of them, before and behind.
//!
//! Keys are taken [`SEGMENT`] at a time from the segment's first on, as in causal attention over a cache, and
//! the states of a row merged in order: its result depends on the patches of its segment alone.

use super::super::attention::{Gathered, HeadNorm, Tile, merge};
use super::super::memory::Memory;
use super::super::rows::Rows;
use super::super::shape::SEGMENT;
use super::super::simd::{QUERY_ROWS, TILE, at, at_mut};
use super::super::team::Lane;
use super::rows::Patches;

/// Queries that share the keys and values gathered for them.
const ITEM_ROWS: usize = 96;

/// A pair of dimensions of a head, and the radians that they turn by for each row and column of their patch.
#[derive(Clone, Copy, Debug)]
pub struct PatchTurn {
    /// The two dimensions.
    pub pair: [usize; 2],
    /// For each row, and for each column; one of them is 0.
    pub by: [f32; 2],
}

/// Scratch memory of [`segment_attention`].
#[derive(Debug)]
pub struct PatchAttentionScratch<const HEAD_DIM: usize> {
    lanes: Vec<LaneScratch>,
}

/// That of one lane.
#[derive(Debug)]
struct LaneScratch {
    /// Keys, `[HEAD_DIM][SEGMENT]`.
    keys: Memory<f32>,
    /// Values, `[SEGMENT][HEAD_DIM rounded up to 16]`.
    values: Memory<f32>,
    /// Scores of a tile of queries, `[QUERY_ROWS][SEGMENT]`.
    scores: Memory<f32>,
    /// One state for each row of an item, followed by one for each row of the current tile.
    states: Memory<f32>,
}

impl<const HEAD_DIM: usize> PatchAttentionScratch<HEAD_DIM> {
    /// Length of a head's values, padded.
    const WIDTH: usize = HEAD_DIM.next_multiple_of(TILE);
    /// Elements of a row's state: largest score, sum of weights, and (from 16 on) the weighted sum of values.
    const STATE: usize = TILE + Self::WIDTH;

    /// Scratch for a team of `lanes`.
    pub fn new(lanes: usize) -> Self {
        let scratch = || LaneScratch {
            keys: Memory::zeroed(HEAD_DIM * SEGMENT),
            values: Memory::zeroed(SEGMENT * Self::WIDTH),
            scores: Memory::zeroed(QUERY_ROWS * SEGMENT),
            states: Memory::zeroed((ITEM_ROWS + QUERY_ROWS) * Self::STATE),
        };
        PatchAttentionScratch { lanes: (0..lanes).map(|_| scratch()).collect() }
    }
}

/// Attention of one layer of a tower: normalises queries, keys and values, rotates queries and keys by the
/// places of their patches, and attends: `softmax(scale q K^T) V` over the patches of the same segment.
///
/// A row of `qkv` (`QKV = 3 * HEADS * HEAD_DIM`) holds the heads of queries, of keys, then of values, which
/// are changed in place. `turns` are all the pairs of a head. A row of `out` receives the heads' results.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn segment_attention<
    Q,
    K,
    V,
    const HEAD_DIM: usize,
    const PAIRS: usize,
    const QKV: usize,
    const OUT: usize,
>(
    lane: &Lane,
    patches: &Patches,
    qkv: &Rows<QKV>,
    q_norm: &Q,
    k_norm: &K,
    v_norm: &V,
    turns: &[PatchTurn; PAIRS],
    scale: f32,
    scratch: &PatchAttentionScratch<HEAD_DIM>,
    out: &Rows<OUT>,
) where
    Q: HeadNorm<HEAD_DIM>,
    K: HeadNorm<HEAD_DIM>,
    V: HeadNorm<HEAD_DIM>,
{
    const {
        assert!(QKV == 3 * OUT, "a row holds queries, keys and values");
        assert!(HEAD_DIM > 0 && OUT.is_multiple_of(HEAD_DIM), "a row holds whole heads");
        assert!(2 * PAIRS == HEAD_DIM, "every dimension of a head turns");
    }
    for patch in lane.share(patches.count()) {
        let [row, column] = patches.place(patch).map(|axis| axis as f32);
        // One of the two products is 0.
        let angles = turns.map(|turn| (row * turn.by[0] + column * turn.by[1]).sin_cos());
        // SAFETY: the shares of the lanes are disjoint.
        let (queries, rest) = unsafe { &mut qkv.padded_mut(patch)[..QKV] }.split_at_mut(OUT);
        let (keys, values) = rest.split_at_mut(OUT);
        for first in (0..OUT).step_by(HEAD_DIM) {
            let [query, key, value]: [&mut [f32; HEAD_DIM]; 3] =
                [at_mut(queries, first), at_mut(keys, first), at_mut(values, first)];
            q_norm.normalise(query);
            k_norm.normalise(key);
            v_norm.normalise(value);
            turn(query, turns, &angles);
            turn(key, turns, &angles);
        }
    }
    lane.barrier();

    let (segment, heads) = (patches.segment(), OUT / HEAD_DIM);
    let items = segment.div_ceil(ITEM_ROWS);
    let scratch = &scratch.lanes[lane.index()];
    let work: Work<HEAD_DIM, QKV, OUT> = Work { segment, qkv, scale, scratch, out };
    loop {
        let item = lane.claim();
        let (head, rows) = (item / items % heads, item % items * ITEM_ROWS);
        let first = item / items / heads * segment;
        if first >= patches.count() {
            break;
        }
        work.attend(first, head, rows..segment.min(rows + ITEM_ROWS));
    }
    lane.barrier();
}

/// Rotates the pairs of a head by angles, given as sines and cosines.
#[inline(always)]
fn turn<const HEAD_DIM: usize, const PAIRS: usize>(
    head: &mut [f32; HEAD_DIM],
    turns: &[PatchTurn; PAIRS],
    angles: &[(f32, f32); PAIRS],
) {
    for (PatchTurn { pair: [a, b], .. }, (sin, cos)) in turns.iter().zip(angles) {
        (head[*a], head[*b]) = (head[*a] * cos - head[*b] * sin, head[*b] * cos + head[*a] * sin);
    }
}

/// The second half: queries and keys are rotated.
struct Work<'a, const HEAD_DIM: usize, const QKV: usize, const OUT: usize> {
    /// Patches of a segment.
    segment: usize,
    qkv: &'a Rows<QKV>,
    scale: f32,
    scratch: &'a LaneScratch,
    out: &'a Rows<OUT>,
}

impl<const HEAD_DIM: usize, const QKV: usize, const OUT: usize> Work<'_, HEAD_DIM, QKV, OUT> {
    const WIDTH: usize = PatchAttentionScratch::<HEAD_DIM>::WIDTH;
    const STATE: usize = PatchAttentionScratch::<HEAD_DIM>::STATE;

    /// Attends with a head of some rows of the segment that begins at patch `first`.
    fn attend(&self, first: usize, head: usize, rows: std::ops::Range<usize>) {
        // SAFETY: only this lane uses its scratch, and each part of it has one use.
        let (states, current) = unsafe {
            let states = self.scratch.states.slice_mut(0, (ITEM_ROWS + QUERY_ROWS) * Self::STATE);
            states.split_at_mut(ITEM_ROWS * Self::STATE)
        };
        for from in (0..self.segment).step_by(SEGMENT) {
            let seen = SEGMENT.min(self.segment - from);
            let source = self.gather(first + from, head, seen);
            let mut row = rows.start;
            while row < rows.end {
                let states = &mut states[(row - rows.start) * Self::STATE..];
                let left = rows.end - row;
                let tile = (first + row, head, seen, from > 0);
                row += match left {
                    _ if left >= QUERY_ROWS => self.tile::<QUERY_ROWS>(tile, &source, states, current),
                    _ if QUERY_ROWS > 3 && left >= 3 => self.tile::<3>(tile, &source, states, current),
                    _ => self.tile::<1>(tile, &source, states, current),
                };
            }
        }
        for (row, state) in rows.zip(states.chunks_exact(Self::STATE)) {
            // SAFETY: each head of a patch belongs to one item.
            let out = unsafe { self.out.part_mut(first + row, head * HEAD_DIM, HEAD_DIM) };
            for (out, sum) in out.iter_mut().zip(&state[TILE..]) {
                *out = sum / state[1];
            }
        }
    }

    /// Keys and values of a head of `seen` patches from `first` on.
    fn gather(&self, first: usize, head: usize, seen: usize) -> Gathered<'_, HEAD_DIM, HEAD_DIM> {
        // SAFETY: only this lane uses its scratch, and each part of it has one use.
        let (keys, values) = unsafe {
            let keys = self.scratch.keys.slice_mut(0, HEAD_DIM * SEGMENT);
            (keys, self.scratch.values.slice_mut(0, SEGMENT * Self::WIDTH))
        };
        let keys: &mut [[f32; SEGMENT]; HEAD_DIM] = at_mut(keys.as_chunks_mut().0, 0);
        for key in 0..seen {
            // SAFETY: no lane writes `qkv` in this phase.
            let row = unsafe { self.qkv.padded(first + key) };
            for (d, keys) in keys.iter_mut().enumerate() {
                keys[key] = row[OUT + head * HEAD_DIM + d];
            }
            values[key * Self::WIDTH..][..HEAD_DIM]
                .copy_from_slice(&row[2 * OUT + head * HEAD_DIM..][..HEAD_DIM]);
        }
        Gathered { keys, values }
    }

    /// Attends with `R` queries from a patch on to what is gathered: each row's state is merged into `states`
    /// or replaces it. Returns `R`.
    #[inline(always)]
    fn tile<const R: usize>(
        &self,
        (patch, head, seen, merging): (usize, usize, usize, bool),
        source: &Gathered<'_, HEAD_DIM, HEAD_DIM>,
        states: &mut [f32],
        current: &mut [f32],
    ) -> usize {
        let queries: [&[f32; HEAD_DIM]; R] = std::array::from_fn(|r| {
            // SAFETY: no lane writes `qkv` in this phase.
            at(unsafe { self.qkv.padded(patch + r) }, head * HEAD_DIM)
        });
        let tile: Tile<R, HEAD_DIM, HEAD_DIM> =
            Tile { queries, reach: [seen; R], skip: [0; R], scale: self.scale };
        // SAFETY: only this lane uses its scratch, and each part of it has one use.
        let scores = unsafe { self.scratch.scores.slice_mut(0, QUERY_ROWS * SEGMENT) };
        let states = &mut states[..R * Self::STATE];
        if merging {
            tile.attend(source, scores, current);
            let both = states.chunks_exact_mut(Self::STATE).zip(current.chunks_exact(Self::STATE));
            both.for_each(|(total, current)| merge(total, current));
        } else {
            tile.attend(source, scores, states);
        }
        R
    }
}

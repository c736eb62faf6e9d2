//! The recurrence, token by token, followed by norm and gate.

use super::super::epilogue::Activation;
use super::super::norm::NormWeight;
use super::super::recurrent::tile::{COLUMNS, Columns, Read, Tile, VECTORS, columns};
use super::super::recurrent::{keep, load, store, through_versions};
use super::super::shape::Sequence;
use super::super::simd::{F32s, LANES, at_mut};
use super::super::team::Lane;
use super::Work;
use super::prepare::Token;
use std::ops::Range;

impl<
    A: Activation,
    K: NormWeight,
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const QKVZ: usize,
    const BA: usize,
    const OUT: usize,
    const DRAFTS: usize,
> Work<'_, A, K, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS, CHANNELS, QKVZ, BA, OUT, DRAFTS>
{
    /// Runs everything after [`Work::prepare`]; ends with a barrier.
    pub(super) fn recur(&self, lane: &Lane) {
        let sequences = self.batch.sequences();
        loop {
            let item = lane.claim();
            let Some(sequence) = sequences.get(item / VALUE_HEADS) else { break };
            let head = item % VALUE_HEADS;
            // SAFETY: slots differ, so a value head's matrices belong to one item.
            unsafe {
                through_versions(self.state, self.layer, sequence, head, |rows, last| {
                    self.recur_rows(sequence, head, rows, last);
                });
            }
            for row in sequence.rows.clone() {
                self.finish(head, row);
            }
            // Each item keeps a share of the channels; any split would do.
            let channels = head * CHANNELS / VALUE_HEADS..(head + 1) * CHANNELS / VALUE_HEADS;
            // SAFETY: no lane writes the projections in this phase, the kept inputs were read before a
            // barrier, and the items' shares are disjoint.
            unsafe { keep(self.state, self.layer, sequence, (self.qkvz, 0), channels) };
        }
        lane.barrier();
    }

    /// Runs some rows of a sequence through its state after `position`.
    #[inline(always)]
    fn recur_rows(&self, sequence: &Sequence, head: usize, rows: Range<usize>, position: usize) {
        // SAFETY: slots differ, so a value head's matrices belong to one item.
        let matrix = unsafe { self.state.matrix_mut(self.layer, sequence.slot, head, position) };
        let (matrix, _) = matrix.as_chunks_mut::<COLUMNS>();
        for (tile, matrix) in matrix.chunks_exact_mut(KEY_DIM).enumerate() {
            let mut tile_of = Tile(at_mut(matrix, 0));
            if self.batch.positions()[rows.start] == 0 {
                tile_of.clear();
            }
            self.recur_tile(head, tile * COLUMNS, tile_of, rows.clone());
        }
    }

    /// Runs some tokens through columns `from ..` of a value head; `out` receives `o`.
    #[inline(always)]
    fn recur_tile(&self, head: usize, from: usize, mut tile: Tile<KEY_DIM>, rows: Range<usize>) {
        let Range { start: mut row, end } = rows;
        // SAFETY: tokens were prepared before a barrier.
        let mut token = unsafe { self.scratch.token(head, row) };
        let mut read = tile.read(token.key, token.query);
        loop {
            let (correction, o) = correct(&token, from, &read);
            // SAFETY: each head of a row belongs to one item.
            let out = unsafe { self.out.part_mut(row, head * VALUE_DIM, VALUE_DIM) };
            for (c, o) in o.into_iter().enumerate() {
                if from + c * LANES < VALUE_DIM {
                    store(o, out, from + c * LANES);
                }
            }
            row += 1;
            if row == end {
                tile.update(token.decay, token.key, &correction);
                return;
            }
            // SAFETY: as above.
            let next = unsafe { self.scratch.token(head, row) };
            read = tile.advance(token.decay, token.key, &correction, next.key, next.query);
            token = next;
        }
    }

    /// Applies norm and gate of a value head.
    fn finish(&self, head: usize, row: usize) {
        // SAFETY: each head of a row belongs to one item.
        let out = unsafe { self.out.part_mut(row, head * VALUE_DIM, VALUE_DIM) };
        self.norm.normalise(at_mut(out, 0));
        // SAFETY: no lane writes the projections in this phase.
        let gates = unsafe { self.qkvz.part(row, CHANNELS + head * VALUE_DIM, VALUE_DIM) };
        for i in (0..VALUE_DIM).step_by(LANES) {
            let gated = A::apply(load(gates, i)) * load(out, i);
            store(gated, out, i);
        }
    }
}

/// The correction `beta (v - p)` of columns `from ..`, and the corrected state's answer to the query, both
/// computed from the previous state's answers: the state need not be decayed and corrected first.
#[inline(always)]
fn correct<const KEY_DIM: usize>(token: &Token<KEY_DIM>, from: usize, read: &Read) -> (Columns, Columns) {
    let value = columns(token.value, from);
    let (decay, rate) = (F32s::splat(token.decay), F32s::splat(token.rate));
    let product = F32s::splat(token.product);
    let correction: [F32s; VECTORS] =
        std::array::from_fn(|c| (F32s::zero() - decay).mul_add(read.by_key[c], value[c]) * rate);
    let o = std::array::from_fn(|c| correction[c].mul_add(product, decay * read.by_query[c]));
    (correction, o)
}

//! The computation: convolution, decay and step; then the recurrence, token by token, gate and norm.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::super::batch::Batch;
use super::super::epilogue::{Activation, Silu};
use super::super::loader::Vector;
use super::super::recurrent::tile::{COLUMNS, Columns, Tile, VECTORS, columns};
use super::super::recurrent::{Convolution, RecurrentState, load, store};
use super::super::rows::Rows;
use super::super::shape::Sequence;
use super::super::simd::{F32s, LANES, at, at_mut, exp, softplus, unrolled};
use super::super::team::Lane;
use super::scratch::Mamba2Scratch;
use std::ops::Range;

/// The arguments of [`super::mamba2()`].
pub(super) struct Work<
    'a,
    const HEADS: usize,
    const HEAD_DIM: usize,
    const GROUPS: usize,
    const STATE: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const PROJECTED: usize,
    const INNER: usize,
    const DRAFTS: usize,
> {
    pub(super) batch: &'a Batch,
    pub(super) layer: usize,
    pub(super) projected: &'a Rows<PROJECTED>,
    pub(super) convolution: &'a Convolution<CHANNELS, TAPS>,
    pub(super) bias: &'a Vector<CHANNELS>,
    pub(super) a_log: &'a Vector<HEADS>,
    pub(super) dt_bias: &'a Vector<HEADS>,
    pub(super) d: &'a Vector<HEADS>,
    pub(super) norm: &'a Vector<INNER>,
    pub(super) eps: f32,
    pub(super) state: &'a RecurrentState<HEADS, STATE, HEAD_DIM, CHANNELS, TAPS, DRAFTS>,
    pub(super) scratch: &'a Mamba2Scratch<HEADS, HEAD_DIM, GROUPS, STATE>,
    pub(super) out: &'a Rows<INNER>,
}

impl<
    const HEADS: usize,
    const HEAD_DIM: usize,
    const GROUPS: usize,
    const STATE: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const PROJECTED: usize,
    const INNER: usize,
    const DRAFTS: usize,
> Work<'_, HEADS, HEAD_DIM, GROUPS, STATE, TAPS, CHANNELS, PROJECTED, INNER, DRAFTS>
{
    const SHARED: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::SHARED;
    const RATES: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::RATES;
    const HEAD: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::HEAD;
    const C: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::C;
    const GROUP: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::GROUP;

    /// Fills the scratch; ends with a barrier.
    pub(super) fn prepare(&self, lane: &Lane) {
        let tokens = self.batch.tokens();
        // Group by group, so that the weights of its channels stay in cache for all tokens.
        for unit in lane.share(tokens * GROUPS) {
            let (group, row) = (unit / tokens, unit % tokens);
            // SAFETY: no lane writes the projections in this phase, and inputs are kept only after its
            // barrier.
            let inputs = unsafe {
                self.state.inputs(self.layer, self.batch, row, (self.projected, INNER), &self.scratch.zeros)
            };
            let start = (group * self.scratch.capacity + row) * Self::GROUP;
            // SAFETY: each group of a token belongs to one lane, with its heads.
            let group_of = unsafe { self.scratch.groups.slice_mut(start, Self::GROUP) };
            let bias = Some(self.bias.padded());
            for (part, out) in group_of.chunks_exact_mut(Self::C).enumerate() {
                let channel = INNER + (part * GROUPS + group) * STATE;
                self.convolution.apply(&inputs, bias, channel, &mut out[..STATE]);
            }
            for head in group * Self::SHARED..(group + 1) * Self::SHARED {
                let start = (head * self.scratch.capacity + row) * Self::HEAD;
                // SAFETY: as above.
                let x = unsafe { self.scratch.heads.slice_mut(start, HEAD_DIM) };
                self.convolution.apply(&inputs, bias, head * HEAD_DIM, x);
            }
            self.prepare_rates(group, row);
        }
        lane.barrier();
    }

    /// Computes the decays and steps of a group's heads.
    #[inline(always)]
    fn prepare_rates(&self, group: usize, row: usize) {
        // SAFETY: no lane writes them in this phase.
        let dt = unsafe { self.projected.part(row, INNER + CHANNELS, HEADS) };
        let heads = group * Self::SHARED..(group + 1) * Self::SHARED;
        for first in heads.clone().step_by(LANES) {
            let step = softplus(load(dt, first) + load(self.dt_bias.padded(), first));
            let decay = exp(F32s::zero() - exp(load(self.a_log.padded(), first)) * step).to_array();
            for (head, (decay, step)) in (first..heads.end).zip(decay.into_iter().zip(step.to_array())) {
                let start = (head * self.scratch.capacity + row) * Self::HEAD + Self::RATES;
                // SAFETY: each head of a token belongs to one lane.
                unsafe { self.scratch.heads.slice_mut(start, 2) }.copy_from_slice(&[decay, step]);
            }
        }
    }

    /// Computes `y` of every head, before gate and norm; ends with a barrier.
    pub(super) fn recur(&self, lane: &Lane) {
        let sequences = self.batch.sequences();
        loop {
            let item = lane.claim();
            let Some(sequence) = sequences.get(item / HEADS) else { break };
            let head = item % HEADS;
            // SAFETY: slots differ, so a head's matrices belong to one item.
            unsafe {
                self.state.through_versions(self.layer, sequence, head, |rows, last| {
                    self.recur_rows(sequence, head, rows, last);
                });
            }
            // Each item keeps a share of the channels; any split would do.
            let channels = head * CHANNELS / HEADS..(head + 1) * CHANNELS / HEADS;
            // SAFETY: no lane writes the projections in this phase, the kept inputs were read before a
            // barrier, and the items' shares are disjoint.
            unsafe { self.state.keep(self.layer, sequence, (self.projected, INNER), channels) };
        }
        lane.barrier();
    }

    /// Runs some rows of a sequence through its state after `position`.
    #[inline(always)]
    fn recur_rows(&self, sequence: &Sequence, head: usize, rows: Range<usize>, position: usize) {
        // SAFETY: slots differ, so a head's matrices belong to one item.
        let matrix = unsafe { self.state.matrix_mut(self.layer, sequence.slot, head, position) };
        let (matrix, _) = matrix.as_chunks_mut::<COLUMNS>();
        for (tile, matrix) in matrix.chunks_exact_mut(STATE).enumerate() {
            let mut tile_of = Tile(at_mut(matrix, 0));
            if self.batch.positions()[rows.start] == 0 {
                tile_of.clear();
            }
            for row in rows.clone() {
                self.recur_row(head, tile * COLUMNS, &mut tile_of, row);
            }
        }
    }

    /// Runs one token through columns `from ..` of a head; `out` receives `y`.
    #[inline(always)]
    fn recur_row(&self, head: usize, from: usize, tile: &mut Tile<STATE>, row: usize) {
        // SAFETY: tokens were prepared before a barrier.
        let token = unsafe { self.scratch.token(head, row) };
        let (x, step) = (columns(token.x, from), F32s::splat(token.step));
        let y = tile.step(token.decay, token.b, &x.map(|x| x * step), token.c);
        let d = F32s::splat(self.d.padded()[head]);
        // SAFETY: each head of a row belongs to one item.
        let out = unsafe { self.out.part_mut(row, head * HEAD_DIM, HEAD_DIM) };
        for (c, (y, x)) in y.into_iter().zip(x).enumerate() {
            if from + c * LANES < HEAD_DIM {
                store(d.mul_add(x, y), out, from + c * LANES);
            }
        }
    }

    /// Applies the gate, and the norm of each group; ends with a barrier.
    pub(super) fn finish(&self, lane: &Lane) {
        let tokens = self.batch.tokens();
        let width = Self::SHARED * HEAD_DIM;
        for unit in lane.share(tokens * GROUPS) {
            let (group, row) = (unit / tokens, unit % tokens);
            // SAFETY: each group of a row belongs to one lane.
            let out = unsafe { self.out.part_mut(row, group * width, width) };
            // SAFETY: no lane writes the projections in this phase.
            let gates = unsafe { self.projected.part(row, group * width, width) };
            let mut squares = F32s::zero();
            for i in (0..width).step_by(LANES) {
                let gated = load(out, i) * Silu::apply(load(gates, i));
                squares = gated.mul_add(gated, squares);
                store(gated, out, i);
            }
            let scale = F32s::splat(1.0 / (squares.sum() / width as f32 + self.eps).sqrt());
            let weights = &self.norm.padded()[group * width..][..width];
            for i in (0..width).step_by(LANES) {
                let normed = load(out, i) * scale * load(weights, i);
                store(normed, out, i);
            }
        }
        lane.barrier();
    }
}

impl<const STATE: usize> Tile<'_, STATE> {
    /// [`Tile::update`], followed by `S^T query`, in one pass.
    #[inline(always)]
    fn step(
        &mut self,
        decay: f32,
        key: &[f32; STATE],
        correction: &Columns,
        query: &[f32; STATE],
    ) -> Columns {
        let mut by_query = [F32s::zero(); VECTORS];
        let decay = F32s::splat(decay);
        for i in 0..STATE {
            let (k, q) = (F32s::splat(key[i]), F32s::splat(query[i]));
            unrolled!(c < VECTORS, {
                let s = F32s::load(at(&self.0[i], c * LANES));
                let s = correction[c].mul_add(k, s * decay);
                s.store(at_mut(&mut self.0[i], c * LANES));
                by_query[c] = s.mul_add(q, by_query[c]);
            });
        }
        by_query
    }
}

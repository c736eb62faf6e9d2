//! The computation: convolution, normalised keys and queries, decay and learning rate; then the recurrence,
//! token by token, norm and gate.

use super::super::batch::Batch;
use super::super::epilogue::Activation;
use super::super::loader::Vector;
use super::super::norm::{NormWeight, RmsNorm};
use super::super::recurrent::tile::{COLUMNS, Columns, Read, Tile, VECTORS, columns};
use super::super::recurrent::{Convolution, RecurrentState, load, store};
use super::super::rows::Rows;
use super::super::shape::Sequence;
use super::super::simd::{F32s, LANES, at_mut, exp, sigmoid, softplus};
use super::super::team::Lane;
use super::scratch::{DeltaScratch, Token};
use std::marker::PhantomData;
use std::ops::Range;

/// Added under the root of the length by which keys and queries are divided.
const EPS: f32 = 1e-6;

/// The arguments of [`super::delta()`].
pub(super) struct Work<
    'a,
    A,
    K,
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
    const TILED: bool,
> {
    pub(super) batch: &'a Batch,
    pub(super) layer: usize,
    pub(super) qkvz: &'a Rows<QKVZ>,
    pub(super) ba: &'a Rows<BA>,
    pub(super) convolution: &'a Convolution<CHANNELS, TAPS>,
    pub(super) a_log: &'a Vector<VALUE_HEADS>,
    pub(super) dt_bias: &'a Vector<VALUE_HEADS>,
    pub(super) norm: &'a RmsNorm<K, VALUE_DIM>,
    pub(super) activation: PhantomData<A>,
    pub(super) state: &'a RecurrentState<VALUE_HEADS, KEY_DIM, VALUE_DIM, CHANNELS, TAPS, DRAFTS>,
    pub(super) scratch: &'a DeltaScratch<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TILED>,
    pub(super) out: &'a Rows<OUT>,
}

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
    const TILED: bool,
> Work<'_, A, K, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS, CHANNELS, QKVZ, BA, OUT, DRAFTS, TILED>
{
    const GROUP: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::GROUP;
    const QUERY: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::QUERY;
    const PRODUCT: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::PRODUCT;
    const KEYS: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::KEYS;
    const RATES: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::RATES;
    const VALUES: usize = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::VALUES;

    /// Fills the scratch; ends with a barrier.
    pub(super) fn prepare(&self, lane: &Lane) {
        let tokens = self.batch.tokens();
        // Head by head, so that the weights of its channels stay in cache for all tokens.
        for unit in lane.share(tokens * KEY_HEADS) {
            let (head, row) = (unit / tokens, unit % tokens);
            // SAFETY: no lane writes the projections in this phase, and inputs are kept only after its
            // barrier.
            let inputs = unsafe {
                self.state.inputs(self.layer, self.batch, row, (self.qkvz, 0), &self.scratch.zeros)
            };
            self.prepare_keys(head, row, &inputs);
            // As many value heads to each key head, whichever of them read it.
            for value_head in head * Self::GROUP..(head + 1) * Self::GROUP {
                let start = (value_head * self.scratch.capacity + row) * Self::VALUES;
                // SAFETY: each head of a token belongs to one lane.
                let value = unsafe { self.scratch.values.slice_mut(start, VALUE_DIM) };
                let channel = 2 * KEY_HEADS * KEY_DIM + value_head * VALUE_DIM;
                self.convolution.apply(&inputs, None, channel, value);
            }
            self.prepare_rates(head, row);
        }
        lane.barrier();
    }

    /// Computes the normalised key and query of a head, and their product.
    #[inline(always)]
    fn prepare_keys(&self, head: usize, row: usize, inputs: &[&[f32]; TAPS]) {
        let start = (head * self.scratch.capacity + row) * Self::KEYS;
        // SAFETY: each head of a token belongs to one lane.
        let keys = unsafe { self.scratch.keys.slice_mut(start, Self::KEYS) };
        let (key, rest) = keys.split_at_mut(Self::QUERY);
        let (query, product) = rest.split_at_mut(Self::PRODUCT - Self::QUERY);
        self.convolution.apply(inputs, None, head * KEY_DIM, &mut query[..KEY_DIM]);
        self.convolution.apply(inputs, None, (KEY_HEADS + head) * KEY_DIM, &mut key[..KEY_DIM]);
        resize(key, 1.0);
        resize(query, 1.0 / (KEY_DIM as f32).sqrt());
        product[0] = dot(key, query);
    }

    /// Computes the decays and learning rates of the value heads that are prepared with key head `head`.
    #[inline(always)]
    fn prepare_rates(&self, head: usize, row: usize) {
        // SAFETY: no lane writes them in this phase.
        let ba = unsafe { self.ba.part(row, 0, BA) };
        let (b, a) = ba.split_at(VALUE_HEADS);
        let heads = head * Self::GROUP..(head + 1) * Self::GROUP;
        for first in heads.clone().step_by(LANES) {
            let step = softplus(load(a, first) + load(self.dt_bias.padded(), first));
            let decay = exp(F32s::zero() - exp(load(self.a_log.padded(), first)) * step).to_array();
            let rate = sigmoid(load(b, first)).to_array();
            for (head, (decay, rate)) in (first..heads.end).zip(decay.into_iter().zip(rate)) {
                let start = (head * self.scratch.capacity + row) * Self::VALUES + Self::RATES;
                // SAFETY: each head of a token belongs to one lane.
                unsafe { self.scratch.values.slice_mut(start, 2) }.copy_from_slice(&[decay, rate]);
            }
        }
    }

    /// Runs everything after [`Work::prepare`]; ends with a barrier.
    pub(super) fn recur(&self, lane: &Lane) {
        let sequences = self.batch.sequences();
        loop {
            let item = lane.claim();
            let Some(sequence) = sequences.get(item / VALUE_HEADS) else { break };
            let head = item % VALUE_HEADS;
            // SAFETY: slots differ, so a value head's matrices belong to one item.
            unsafe {
                self.state.through_versions(self.layer, sequence, head, |rows, last| {
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
            unsafe { self.state.keep(self.layer, sequence, (self.qkvz, 0), channels) };
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

/// Divides a vector (whose length is a multiple of 16) by its Euclidean length and multiplies it by `factor`.
#[inline(always)]
fn resize(x: &mut [f32], factor: f32) {
    let scale = F32s::splat(factor / (dot(x, x) + EPS).sqrt());
    for i in (0..x.len()).step_by(LANES) {
        let scaled = load(x, i) * scale;
        store(scaled, x, i);
    }
}

/// The product of two vectors whose length is a multiple of 16.
#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sum = F32s::zero();
    for i in (0..x.len()).step_by(LANES) {
        sum = load(x, i).mul_add(load(y, i), sum);
    }
    sum.sum()
}

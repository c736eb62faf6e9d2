//! The part before the recurrence: convolution, normalised keys and queries, decay and learning rate.

use super::super::memory::Memory;
use super::super::recurrent::{inputs, load, store, tile::COLUMNS};
use super::super::simd::{F32s, LANES, TILE, at, exp, sigmoid, softplus};
use super::super::team::Lane;
use super::Work;

/// Added under the root of the length by which keys and queries are divided.
const EPS: f32 = 1e-6;

/// Scratch memory of [`delta`](super::delta()); layers may share one.
#[derive(Debug)]
pub struct DeltaScratch<
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
> {
    /// `[KEY_HEADS][capacity]` of the key and the query, each zero-padded to a multiple of 16, and their
    /// product.
    keys: Memory<f32>,
    /// `[VALUE_HEADS][capacity]` of the value, zero-padded to a multiple of 32, and decay and learning rate.
    values: Memory<f32>,
    /// The inputs before the first token: a zero for each channel.
    zeros: Memory<f32>,
    capacity: usize,
}

impl<const KEY_HEADS: usize, const VALUE_HEADS: usize, const KEY_DIM: usize, const VALUE_DIM: usize>
    DeltaScratch<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>
{
    /// Value heads that share a key head.
    pub(super) const GROUP: usize = {
        assert!(
            KEY_HEADS > 0 && VALUE_HEADS > 0 && VALUE_HEADS.is_multiple_of(KEY_HEADS),
            "value heads are a multiple of key heads"
        );
        VALUE_HEADS / KEY_HEADS
    };
    /// Offset from a key to its query.
    const QUERY: usize = KEY_DIM.next_multiple_of(TILE);
    /// Offset from a key to its product with the query.
    const PRODUCT: usize = 2 * Self::QUERY;
    /// Elements between the keys of consecutive tokens.
    const KEYS: usize = Self::PRODUCT + TILE;
    /// Offset from a value to its decay, which the learning rate follows.
    const RATES: usize = VALUE_DIM.next_multiple_of(COLUMNS);
    /// Elements between the values of consecutive tokens.
    const VALUES: usize = Self::RATES + TILE;

    /// Scratch for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        DeltaScratch {
            keys: Memory::zeroed(KEY_HEADS * capacity * Self::KEYS),
            values: Memory::zeroed(VALUE_HEADS * capacity * Self::VALUES),
            zeros: Memory::zeroed(2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM),
            capacity,
        }
    }

    /// Most tokens of a step.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A token's inputs to the recurrence of value head `head`.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(super) unsafe fn token(&self, head: usize, row: usize) -> Token<'_, KEY_DIM> {
        let at_key = (head / Self::GROUP * self.capacity + row) * Self::KEYS;
        // SAFETY: the caller's promise.
        let keys = unsafe { self.keys.slice(at_key, Self::KEYS) };
        // SAFETY: as above.
        let values = unsafe { self.values.slice((head * self.capacity + row) * Self::VALUES, Self::VALUES) };
        Token {
            key: at(keys, 0),
            query: at(keys, Self::QUERY),
            product: keys[Self::PRODUCT],
            value: &values[..Self::RATES],
            decay: values[Self::RATES],
            rate: values[Self::RATES + 1],
        }
    }
}

/// A token's inputs to the recurrence.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, const KEY_DIM: usize> {
    pub(super) key: &'a [f32; KEY_DIM],
    pub(super) query: &'a [f32; KEY_DIM],
    /// Key times query.
    pub(super) product: f32,
    /// Zero-padded to a multiple of 32.
    pub(super) value: &'a [f32],
    /// `exp(g)`, the factor of the previous state.
    pub(super) decay: f32,
    /// `beta`, the fraction of the error to correct.
    pub(super) rate: f32,
}

impl<
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
> Work<'_, A, K, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS, CHANNELS, QKVZ, BA, OUT, DRAFTS>
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
            let state = (self.state, self.layer);
            // SAFETY: no lane writes the projections in this phase, and inputs are kept only after its
            // barrier.
            let inputs = unsafe { inputs(self.batch, row, self.qkvz, 0, state, &self.scratch.zeros) };
            self.prepare_keys(head, row, &inputs);
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

    /// Computes the decays and learning rates of the value heads of key head `head`.
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

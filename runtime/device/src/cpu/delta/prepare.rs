//! What does not depend on the recurrence: convolution, length of keys and queries, decay and learning rate.

use super::super::memory::Memory;
use super::super::recurrent::{inputs, load, store, tile::COLUMNS};
use super::super::simd::{F32s, LANES, TILE, at, exp, sigmoid, softplus};
use super::super::team::Lane;
use super::Work;

/// Under the root of the length that keys and queries are divided by.
const EPS: f32 = 1e-6;

/// Room that [`delta`](super::delta()) works in; layers may share one.
#[derive(Debug)]
pub struct DeltaScratch<
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
> {
    /// `[KEY_HEADS][capacity]` of: the key, the query, each rounded up to 16 with zeros; their product.
    keys: Memory<f32>,
    /// `[VALUE_HEADS][capacity]` of: the value rounded up to 32 with zeros; decay and learning rate.
    values: Memory<f32>,
    /// What stands before the first token: a zero for each channel.
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
    /// From a key to its query.
    const QUERY: usize = KEY_DIM.next_multiple_of(TILE);
    /// From a key to its product with the query.
    const PRODUCT: usize = 2 * Self::QUERY;
    /// From one token's key to the next.
    const KEYS: usize = Self::PRODUCT + TILE;
    /// From a value to its decay, behind which the learning rate stands.
    const RATES: usize = VALUE_DIM.next_multiple_of(COLUMNS);
    /// From one token's value to the next.
    const VALUES: usize = Self::RATES + TILE;

    /// Room for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        DeltaScratch {
            keys: Memory::zeroed(KEY_HEADS * capacity * Self::KEYS),
            values: Memory::zeroed(VALUE_HEADS * capacity * Self::VALUES),
            zeros: Memory::zeroed(2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM),
            capacity,
        }
    }

    /// Tokens there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A token as value head `head` sees it.
    ///
    /// # Safety
    /// No lane writes it while the result lives.
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

/// What the recurrence takes of a token.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, const KEY_DIM: usize> {
    pub(super) key: &'a [f32; KEY_DIM],
    pub(super) query: &'a [f32; KEY_DIM],
    /// Key times query.
    pub(super) product: f32,
    /// Rounded up to 32.
    pub(super) value: &'a [f32],
    /// `exp(g)`, what is left of the past.
    pub(super) decay: f32,
    /// `beta`, how much of its error is corrected.
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
        // Head by head, so that the weights of its channels stay near while the tokens pass.
        for unit in lane.share(tokens * KEY_HEADS) {
            let (head, row) = (unit / tokens, unit % tokens);
            let state = (self.state, self.layer);
            // SAFETY: nobody writes the projections in this phase, and inputs are kept only behind its
            // barrier.
            let inputs = unsafe { inputs(self.batch, row, self.qkvz, 0, state, &self.scratch.zeros) };
            self.prepare_keys(head, row, &inputs);
            for value_head in head * Self::GROUP..(head + 1) * Self::GROUP {
                let start = (value_head * self.scratch.capacity + row) * Self::VALUES;
                // SAFETY: each head of a token is one lane's.
                let value = unsafe { self.scratch.values.slice_mut(start, VALUE_DIM) };
                let channel = 2 * KEY_HEADS * KEY_DIM + value_head * VALUE_DIM;
                self.convolution.apply(&inputs, None, channel, value);
            }
            self.prepare_rates(head, row);
        }
        lane.barrier();
    }

    /// The key and the query of a head, brought to their lengths, and their product.
    #[inline(always)]
    fn prepare_keys(&self, head: usize, row: usize, inputs: &[&[f32]; TAPS]) {
        let start = (head * self.scratch.capacity + row) * Self::KEYS;
        // SAFETY: each head of a token is one lane's.
        let keys = unsafe { self.scratch.keys.slice_mut(start, Self::KEYS) };
        let (key, rest) = keys.split_at_mut(Self::QUERY);
        let (query, product) = rest.split_at_mut(Self::PRODUCT - Self::QUERY);
        self.convolution.apply(inputs, None, head * KEY_DIM, &mut query[..KEY_DIM]);
        self.convolution.apply(inputs, None, (KEY_HEADS + head) * KEY_DIM, &mut key[..KEY_DIM]);
        resize(key, 1.0);
        resize(query, 1.0 / (KEY_DIM as f32).sqrt());
        product[0] = dot(key, query);
    }

    /// The decays and learning rates of the value heads of key head `head`.
    #[inline(always)]
    fn prepare_rates(&self, head: usize, row: usize) {
        // SAFETY: nobody writes them in this phase.
        let ba = unsafe { self.ba.part(row, 0, BA) };
        let (b, a) = ba.split_at(VALUE_HEADS);
        let heads = head * Self::GROUP..(head + 1) * Self::GROUP;
        for first in heads.clone().step_by(LANES) {
            let step = softplus(load(a, first) + load(self.dt_bias.padded(), first));
            let decay = exp(F32s::zero() - exp(load(self.a_log.padded(), first)) * step).to_array();
            let rate = sigmoid(load(b, first)).to_array();
            for (head, (decay, rate)) in (first..heads.end).zip(decay.into_iter().zip(rate)) {
                let start = (head * self.scratch.capacity + row) * Self::VALUES + Self::RATES;
                // SAFETY: each head of a token is one lane's.
                unsafe { self.scratch.values.slice_mut(start, 2) }.copy_from_slice(&[decay, rate]);
            }
        }
    }
}

/// Divides a vector (whose length is a multiple of 16) by its Euclidean length and multiplies it with
/// `factor`.
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

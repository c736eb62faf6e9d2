//! What is computed of the tokens before the recurrence.

use super::super::memory::Memory;
use super::super::recurrent::tile::COLUMNS;
use super::super::simd::{TILE, at};

/// Scratch memory of [`delta`](super::delta()); layers may share one. Value head `j` reads key head
/// `j / (VALUE_HEADS / KEY_HEADS)`, or `j % KEY_HEADS` where they are `TILED`.
#[derive(Debug)]
pub struct DeltaScratch<
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
    const TILED: bool = false,
> {
    /// `[KEY_HEADS][capacity]` of the key and the query, each zero-padded to a multiple of 16, and their
    /// product.
    pub(super) keys: Memory<f32>,
    /// `[VALUE_HEADS][capacity]` of the value, zero-padded to a multiple of 32, and decay and learning rate.
    pub(super) values: Memory<f32>,
    /// The inputs before the first token: a zero for each channel.
    pub(super) zeros: Memory<f32>,
    pub(super) capacity: usize,
}

impl<
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
    const TILED: bool,
> DeltaScratch<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TILED>
{
    /// Value heads to a key head.
    pub(super) const GROUP: usize = {
        assert!(
            KEY_HEADS > 0 && VALUE_HEADS > 0 && VALUE_HEADS.is_multiple_of(KEY_HEADS),
            "value heads are a multiple of key heads"
        );
        VALUE_HEADS / KEY_HEADS
    };
    /// Offset from a key to its query.
    pub(super) const QUERY: usize = KEY_DIM.next_multiple_of(TILE);
    /// Offset from a key to its product with the query.
    pub(super) const PRODUCT: usize = 2 * Self::QUERY;
    /// Elements between the keys of consecutive tokens.
    pub(super) const KEYS: usize = Self::PRODUCT + TILE;
    /// Offset from a value to its decay, which the learning rate follows.
    pub(super) const RATES: usize = VALUE_DIM.next_multiple_of(COLUMNS);
    /// Elements between the values of consecutive tokens.
    pub(super) const VALUES: usize = Self::RATES + TILE;

    /// Scratch for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        DeltaScratch {
            keys: Memory::zeroed(KEY_HEADS * capacity * Self::KEYS),
            values: Memory::zeroed(VALUE_HEADS * capacity * Self::VALUES),
            zeros: Memory::zeroed(2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM),
            capacity,
        }
    }

    /// A token's inputs to the recurrence of value head `head`.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(super) unsafe fn token(&self, head: usize, row: usize) -> Token<'_, KEY_DIM> {
        let key_head = if TILED { head % KEY_HEADS } else { head / Self::GROUP };
        let at_key = (key_head * self.capacity + row) * Self::KEYS;
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

//! The paged cache of keys and values.

use super::format::KvElement;
use super::memory::Memory;
use super::simd::TILE;
use monomorph_model::LoadError;

/// Keys and values of all layers in blocks of `BLOCK` tokens (a multiple of 16), elements of type `E`.
///
/// A block holds, for each layer and K/V head, the keys transposed (`[HEAD_DIM][BLOCK]`, so that a vector is
/// one dimension of several keys) and the values (`[BLOCK][HEAD_DIM rounded up to 16]`). Pages become resident
/// when first written.
#[derive(Debug)]
pub struct KvCache<E, const KV_HEADS: usize, const HEAD_DIM: usize, const BLOCK: usize> {
    data: Memory<E>,
    layers: usize,
    blocks: usize,
}

impl<E: KvElement, const KV_HEADS: usize, const HEAD_DIM: usize, const BLOCK: usize>
    KvCache<E, KV_HEADS, HEAD_DIM, BLOCK>
{
    /// Elements from one value row to the next.
    pub(crate) const VALUE: usize = HEAD_DIM.next_multiple_of(TILE);
    /// Elements of one head's keys in a block.
    const KEYS: usize = HEAD_DIM * BLOCK;
    /// Elements of one head's keys and values in a block.
    const HEAD: usize = {
        assert!(BLOCK > 0 && BLOCK.is_multiple_of(TILE), "a K/V block holds a multiple of 16 tokens");
        Self::KEYS + BLOCK * Self::VALUE
    };

    /// Bytes of one block over `layers` layers.
    pub const fn block_bytes(layers: usize) -> usize {
        layers * KV_HEADS * Self::HEAD * size_of::<E>()
    }

    /// A cache of `blocks` blocks over `layers` layers.
    ///
    /// # Errors
    /// When the address space does not hold it.
    pub fn new(layers: usize, blocks: usize) -> Result<Self, LoadError> {
        let data = blocks
            .checked_mul(Self::block_bytes(layers))
            .and_then(|bytes| Memory::try_zeroed(bytes / size_of::<E>()))
            .ok_or_else(|| LoadError::Memory {
                what: format!("K/V cache of {blocks} blocks"),
                needed: (blocks as u64).saturating_mul(Self::block_bytes(layers) as u64),
                available: 0,
                fits: None,
            })?;
        Ok(KvCache { data, layers, blocks })
    }

    /// Blocks of the cache.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Layers of the cache.
    pub fn layers(&self) -> usize {
        self.layers
    }

    #[inline(always)]
    fn start(&self, layer: usize, block: u32, head: usize) -> usize {
        ((block as usize * self.layers + layer) * KV_HEADS + head) * Self::HEAD
    }

    /// The transposed keys of a head in a block.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn keys(&self, layer: usize, block: u32, head: usize) -> &[E] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(self.start(layer, block, head), Self::KEYS) }
    }

    /// The values of a head in a block.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn values(&self, layer: usize, block: u32, head: usize) -> &[E] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(self.start(layer, block, head) + Self::KEYS, BLOCK * Self::VALUE) }
    }

    /// Writes the key and value of one token (at `slot` of the block) for one head.
    ///
    /// # Safety
    /// No other lane reads or writes that token's place meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(
        &self,
        layer: usize,
        block: u32,
        head: usize,
        slot: usize,
        key: &[f32; HEAD_DIM],
        value: &[f32; HEAD_DIM],
    ) {
        assert!(slot < BLOCK, "a place in a block");
        let start = self.start(layer, block, head);
        // One element at a time: other tokens' keys, which other lanes may be writing, stand in between.
        for (d, x) in key.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.data.slice_mut(start + d * BLOCK + slot, 1)[0] = E::from_f32(*x) };
        }
        // SAFETY: the caller's promise.
        let out = unsafe { self.data.slice_mut(start + Self::KEYS + slot * Self::VALUE, HEAD_DIM) };
        for (out, x) in out.iter_mut().zip(value) {
            *out = E::from_f32(*x);
        }
    }
}

//! The paged cache of keys and values.

use super::batch::Batch;
use super::keeps::Keeps;
use super::kept::{KvCodes, KvKept, Unit};
use super::kv_offload::{KvOffload, Staged, Stream};
use super::memory::Memory;
use super::pack;
use super::shape::{BlockTable, Sequence};
use super::simd::{TILE, at};
use super::static_scales::StaticScales;
use monomorph_abi::kv::Layout;
use monomorph_formats::cached::{Cached, Codec, GROUP, Group, KvFormats, Rotation};
use monomorph_model::{BlockId, KvScaleSpec, KvScales, LoadError, OffloadSlot, SlidingId};
use monomorph_weights::{Checkpoint, WeightsError};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keys and values of all layers in blocks of `BLOCK` tokens (a multiple of 16), kept as `E`.
pub type KvCache<E, const KV_HEADS: usize, const HEAD_DIM: usize, const BLOCK: usize> =
    PagedCache<E, KV_HEADS, HEAD_DIM, BLOCK, 0>;

/// Latents of all layers, each followed by its rotated key: the keys of one head, whose leading elements are
/// the values.
pub type LatentCache<E, const LATENT: usize, const WIDTH: usize, const BLOCK: usize> =
    PagedCache<E, 1, WIDTH, BLOCK, LATENT>;

/// A cache of blocks. A value is the `LATENT` leading elements of its key, and stored once; with 0 of them
/// values are stored beside keys.
///
/// A block has a part for each layer ([`Layout::cpu`]). Pages become resident when first written.
#[derive(Debug)]
pub struct PagedCache<
    E,
    const KV_HEADS: usize,
    const HEAD_DIM: usize,
    const BLOCK: usize,
    const LATENT: usize,
> {
    data: Memory<u8>,
    kept: PhantomData<E>,
    scales: StaticScales,
    layers: usize,
    /// For each layer, the number of its part of a block on disk; none of layers with a sliding window.
    parts: &'static [usize],
    /// Whether its layers have a sliding window.
    slides: bool,
    blocks: usize,
    stream: Option<Arc<Stream>>,
}

/// One part of the step's staged blocks, from its block on disk `first` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedWindow<'a> {
    pub(super) staged: Staged<'a>,
    pub(crate) first: usize,
}

impl StagedWindow<'_> {
    /// For a step without blocks on disk.
    pub(crate) const NONE: StagedWindow<'static> = StagedWindow { staged: Staged::NONE, first: 0 };
}

impl<E: KvKept, const KV_HEADS: usize, const HEAD_DIM: usize, const BLOCK: usize, const LATENT: usize>
    PagedCache<E, KV_HEADS, HEAD_DIM, BLOCK, LATENT>
{
    /// The layout of a block in one layer.
    const LAYOUT: Layout = {
        assert!(BLOCK > 0 && BLOCK.is_multiple_of(TILE), "a K/V block holds a multiple of 16 tokens");
        let formats = E::FORMATS;
        let grouped = formats.keys.scales().is_some() || formats.values.scales().is_some();
        let layout = Layout::cpu(KV_HEADS, HEAD_DIM, BLOCK, formats);
        let layout = if LATENT == 0 { layout } else { layout.of_latents(LATENT) };
        assert!(!grouped || (HEAD_DIM - layout.tail).is_multiple_of(GROUP), "groups divide what has codes");
        layout
    };
    /// Trailing elements of a key that are kept as bf16, beside codes.
    pub(super) const TAIL: usize = Self::LAYOUT.tail;
    /// Bytes of one head's keys in a block.
    const KEYS: usize = Self::LAYOUT.key_bytes();
    /// Bytes of one head's keys and values in a block.
    const HEAD: usize = Self::KEYS + Self::LAYOUT.value_bytes();

    /// Bytes of one block over `layers` layers.
    pub const fn block_bytes(layers: usize) -> usize {
        layers * Self::LAYOUT.block_bytes()
    }

    /// A cache of `blocks` blocks. Layer `i` has part `parts[i]` of a block on disk.
    ///
    /// # Errors
    /// When the address space is exhausted.
    pub fn new(parts: &'static [usize], blocks: usize) -> Result<Self, LoadError> {
        let data = Self::claim(parts.len(), blocks, "K/V cache")?;
        let (layers, scales) = (parts.len(), Self::unscaled(parts.len()));
        let (slides, stream) = (false, None);
        Ok(PagedCache { data, kept: PhantomData, scales, layers, parts, slides, blocks, stream })
    }

    /// A cache of `blocks` blocks of so many layers with a sliding window: they have blocks of their own,
    /// none of which is on disk.
    ///
    /// # Errors
    /// When the address space is exhausted.
    pub fn sliding(layers: usize, blocks: usize) -> Result<Self, LoadError> {
        let data = Self::claim(layers, blocks, "K/V cache of layers with a sliding window")?;
        let (parts, scales, slides, stream): (&[usize], _, _, _) = (&[], Self::unscaled(layers), true, None);
        Ok(PagedCache { data, kept: PhantomData, scales, layers, parts, slides, blocks, stream })
    }

    fn unscaled(layers: usize) -> StaticScales {
        let KvFormats { keys, values } = E::FORMATS;
        // What is key and value at once has one scale, that of keys.
        let values = if LATENT == 0 { values } else { Cached::Bf16 };
        StaticScales::new(KvFormats { keys, values }, layers, KV_HEADS)
    }

    /// With the static scales of a checkpoint, if it has some, where keys or values are [`Cached::Fp8`]: they
    /// multiply its codes. Its layers are these of the model.
    ///
    /// # Errors
    /// When a scale is missing, or is not positive and finite; names the tensor.
    pub fn scaled(
        mut self,
        checkpoint: &Checkpoint,
        spec: Option<&KvScaleSpec>,
        layers: impl IntoIterator<Item = usize>,
    ) -> Result<Self, LoadError> {
        let Some(spec) = spec else { return Ok(self) };
        for (at, layer) in layers.into_iter().enumerate() {
            for (side, format) in [E::Keys::FORMAT, E::Values::FORMAT].into_iter().enumerate() {
                if format == Cached::Fp8 {
                    let name = spec.names[side].replace("{layer}", &layer.to_string());
                    let scales = checkpoint.static_scales(&name, KV_HEADS)?;
                    let wrong = |what| WeightsError::Mismatch { path: checkpoint.path().to_owned(), what };
                    self.scales.give(at, side, &scales).map_err(wrong)?;
                }
            }
        }
        Ok(self)
    }

    /// What multiplies the codes of a head's keys besides the scales of groups: scores, or where keys have a
    /// tail the codes themselves.
    #[inline(always)]
    pub(super) fn key_scale(&self, layer: usize, head: usize) -> f32 {
        self.scales.of(layer, head)[0].scale()
    }

    /// The same of values; 1 where keys have a tail.
    #[inline(always)]
    pub(super) fn value_scale(&self, layer: usize, head: usize) -> f32 {
        self.scales.of(layer, head)[1].scale()
    }

    fn claim(layers: usize, blocks: usize, what: &str) -> Result<Memory<u8>, LoadError> {
        let each = Self::block_bytes(layers);
        blocks.checked_mul(each).and_then(Memory::try_zeroed).ok_or_else(|| LoadError::Memory {
            what: format!("{what} of {blocks} blocks"),
            needed: (blocks as u64).saturating_mul(each as u64),
            available: 0,
            fits: None,
        })
    }

    /// The source of blocks on disk, and the layer's part number.
    pub(super) fn stream_of(&self, layer: usize) -> Option<(&Stream, usize)> {
        Some((self.stream.as_ref()?, self.parts[layer]))
    }

    /// Number of blocks in memory.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The blocks of a sequence in it.
    #[inline(always)]
    pub(super) fn table<'a>(&self, batch: &'a Batch, sequence: &Sequence) -> BlockTable<'a> {
        if self.slides { batch.sliding_of(sequence) } else { batch.blocks_of(sequence) }
    }

    /// Checks that it has what a batch admits.
    ///
    /// # Panics
    /// When the batch was made for another block size or for more blocks, or there is no such layer.
    pub(super) fn check(&self, batch: &Batch, layer: usize) {
        let limits = batch.limits();
        assert!(limits.block_tokens == BLOCK, "the batch counts blocks of {} tokens", limits.block_tokens);
        let admitted = if self.slides { batch.sliding_limit() } else { limits.blocks };
        assert!(admitted <= self.blocks, "the batch admits blocks that the cache does not have");
        assert!(layer < self.layers(), "the cache has no layer {layer}");
    }

    /// The first byte of a block, and its number of bytes.
    fn block(&self, block: u32) -> (usize, usize) {
        assert!((block as usize) < self.blocks, "there is no K/V block {block}");
        (self.start(0, block, 0), self.layers() * KV_HEADS * Self::HEAD)
    }

    /// Copies a block, over all layers, to the front of `into`; returns the rest of it.
    fn read<'a>(&mut self, block: u32, into: &'a mut [u8]) -> &'a mut [u8] {
        let (start, len) = self.block(block);
        self.data.read(start, len, into)
    }

    /// Writes what [`Self::read`] read, from the front of `from`; returns the rest of it.
    fn write_back<'a>(&mut self, block: u32, from: &'a [u8]) -> &'a [u8] {
        let (start, len) = self.block(block);
        self.data.write(start, len, from)
    }

    #[inline(always)]
    fn start(&self, layer: usize, block: u32, head: usize) -> usize {
        ((block as usize * self.layers + layer) * KV_HEADS + head) * Self::HEAD
    }

    /// The transposed keys of a head in a block, of the cache or of `window`.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn keys<'a>(
        &'a self,
        layer: usize,
        block: u32,
        head: usize,
        window: &StagedWindow<'a>,
    ) -> Unit<'a, E::Keys> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.part((layer, block, head), 0..Self::KEYS, window) };
        let (bytes, tails) = bytes.split_at(Self::LAYOUT.key_tails());
        Unit::new(bytes, Self::LAYOUT.key_codes(), tails)
    }

    /// The values of a head in a block, of the cache or of `window`.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn values<'a>(
        &'a self,
        layer: usize,
        block: u32,
        head: usize,
        window: &StagedWindow<'a>,
    ) -> Unit<'a, E::Values> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.part((layer, block, head), Self::KEYS..Self::HEAD, window) };
        Unit::new(bytes, Self::LAYOUT.value_codes(), &[])
    }

    /// Bytes of what a head has in a block of a layer.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    unsafe fn part<'a>(
        &'a self,
        (layer, block, head): (usize, u32, usize),
        bytes: Range<usize>,
        window: &StagedWindow<'a>,
    ) -> &'a [u8] {
        match (block as usize).checked_sub(self.blocks) {
            None => {
                let start = self.start(layer, block, head) + bytes.start;
                // SAFETY: the caller's promise.
                unsafe { self.data.slice(start, bytes.len()) }
            }
            Some(offloaded) => {
                let start = head * Self::HEAD + bytes.start;
                window.staged.bytes(offloaded - window.first, start, bytes.len())
            }
        }
    }

    /// Writes the key of one token (at `slot` of the block) for one head.
    ///
    /// # Safety
    /// No other lane accesses that token's codes and scales meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write_key(
        &self,
        (layer, block, head): (usize, u32, usize),
        slot: usize,
        key: &[f32; HEAD_DIM],
    ) {
        assert!(slot < BLOCK, "a place in a block");
        let start = self.start(layer, block, head);
        let codec = self.scales.of(layer, head)[0].known(E::Keys::FORMAT);
        let measured = self.scales.measured(layer, head).map(|it| &it[0]);
        // A code at a time: other lanes may be writing the keys of other tokens in between.
        let put = |at: usize, bytes: &[u8]| {
            // SAFETY: the caller's promise.
            unsafe { self.data.slice_mut(start + at, bytes.len()).copy_from_slice(bytes) };
        };
        let store = |first, len, group: &Group| pack::key(&Self::LAYOUT, (slot, first, len), group, put);
        if Self::TAIL == 0 {
            each_group(codec, measured, key, store);
        } else {
            each_group::<LATENT>(codec, measured, at(key, 0), store);
            pack::tail(&Self::LAYOUT, slot, &key[LATENT..], put);
        }
    }

    /// Writes the key and value of one token (at `slot` of the block) for one head.
    ///
    /// # Safety
    /// No other lane accesses that token's codes and scales meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(
        &self,
        place: (usize, u32, usize),
        slot: usize,
        key: &[f32; HEAD_DIM],
        value: &[f32; HEAD_DIM],
    ) {
        const { assert!(LATENT == 0, "the cache stores values") };
        // SAFETY: the caller's promise.
        unsafe { self.write_key(place, slot, key) };
        let (layer, block, head) = place;
        let start = self.start(layer, block, head) + Self::KEYS;
        let codec = self.scales.of(layer, head)[1].known(E::Values::FORMAT);
        let measured = self.scales.measured(layer, head).map(|it| &it[1]);
        each_group(codec, measured, value, |first, len, group| {
            pack::value(&Self::LAYOUT, (slot, first, len), group, |at, bytes| {
                // SAFETY: the caller's promise.
                unsafe { self.data.slice_mut(start + at, bytes.len()).copy_from_slice(bytes) };
            });
        });
    }
}

/// Encodes a vector, rotated if the format wants it, and hands over its groups: the first element of each,
/// how many it has, and what is stored. The largest magnitude of what is encoded is `measured` where asked.
#[inline(always)]
fn each_group<const WIDTH: usize>(
    codec: Codec,
    measured: Option<&AtomicU32>,
    vector: &[f32; WIDTH],
    mut store: impl FnMut(usize, usize, &Group),
) {
    let mut vector = *vector;
    if let Some(rotation) = rotation::<WIDTH>(codec.format()) {
        rotation.apply(&mut vector);
    }
    if let Some(measured) = measured {
        // By their bits, above which those of infinity and of what is no number stand.
        let largest = vector.iter().fold(0, |largest, it| it.abs().to_bits().max(largest));
        measured.fetch_max(largest, Ordering::Relaxed);
    }
    for (at, part) in vector.chunks(GROUP).enumerate() {
        let mut group = [0.0; GROUP];
        group[..part.len()].copy_from_slice(part);
        store(at * GROUP, part.len(), &codec.encode(&group));
    }
}

/// How a format rotates heads of `WIDTH`, if it does.
///
/// # Panics
/// If it cannot.
#[inline(always)]
pub(super) fn rotation<const WIDTH: usize>(format: Cached) -> Option<Rotation> {
    format.is_rotated().then(|| Rotation::new(WIDTH).expect("the spec was checked"))
}

impl<E: KvKept, const KV_HEADS: usize, const HEAD_DIM: usize, const BLOCK: usize, const LATENT: usize> Keeps
    for PagedCache<E, KV_HEADS, HEAD_DIM, BLOCK, LATENT>
{
    fn parts(&self, parts: &mut Vec<(usize, &'static [usize])>) {
        if !self.slides {
            parts.push((Self::block_bytes(1), self.parts));
        }
    }

    fn stream(&mut self, offload: &KvOffload) {
        if !self.slides {
            self.stream = offload.stream();
        }
    }

    fn measure(&mut self) {
        self.scales.measure();
    }

    fn set_scales(&mut self, set: &mut KvScales) -> Result<(), String> {
        self.scales.set(set)
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        if self.slides {
            return Ok(());
        }
        let stream = self.stream.as_ref().expect("blocks are kept on disk");
        assert!(blocks.len() == stream.group(), "a group is {} blocks", stream.group());
        stream.send(to, self.parts, |layer, at, bytes| {
            let block = blocks[at];
            assert!((block.0 as usize) < self.blocks, "there is no K/V block {}", block.0);
            let start = self.start(layer, block.0, 0);
            // SAFETY: no lane runs, and this borrows the cache exclusively.
            bytes.copy_from_slice(unsafe { self.data.slice(start, KV_HEADS * Self::HEAD) });
        })
    }

    fn read_block<'a>(&mut self, block: BlockId, into: &'a mut [u8]) -> &'a mut [u8] {
        if self.slides { into } else { self.read(block.0, into) }
    }

    fn write_block<'a>(&mut self, block: BlockId, from: &'a [u8]) -> &'a [u8] {
        if self.slides { from } else { self.write_back(block.0, from) }
    }

    fn read_sliding<'a>(&mut self, block: SlidingId, into: &'a mut [u8]) -> &'a mut [u8] {
        if self.slides { self.read(block.0, into) } else { into }
    }

    fn write_sliding<'a>(&mut self, block: SlidingId, from: &'a [u8]) -> &'a [u8] {
        if self.slides { self.write_back(block.0, from) } else { from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_put_back_where_it_is_wanted_and_nowhere_else() {
        put_back(KvCache::<f32, 2, 8, 16>::new(&[0, 1, 2], 4).unwrap(), 2 * (8 + 16));
        put_back(LatentCache::<f32, 12, 20, 16>::new(&[0, 1, 2], 4).unwrap(), 20);
    }

    fn put_back<const HEADS: usize, const DIM: usize, const LATENT: usize>(
        mut cache: PagedCache<f32, HEADS, DIM, 16, LATENT>,
        token: usize,
    ) {
        let bytes = PagedCache::<f32, HEADS, DIM, 16, LATENT>::block_bytes(3);
        assert_eq!(bytes, 3 * 16 * 4 * token);
        let pattern: Vec<u8> = (0..bytes + 2).map(|at| (at % 251) as u8).collect();
        assert_eq!(cache.write_block(BlockId(2), &pattern), &pattern[bytes..]);
        let mut read = vec![0; bytes + 1];
        assert_eq!(cache.read_block(BlockId(2), &mut read).len(), 1);
        assert_eq!(read[..bytes], pattern[..bytes]);
        for other in [0, 1, 3] {
            let mut read = vec![1; bytes];
            cache.read_block(BlockId(other), &mut read);
            assert!(read.iter().all(|byte| *byte == 0), "block {other}");
        }
        let none = &StagedWindow::NONE;
        // The slices that a lane reads. SAFETY: no lane runs.
        let (keys, other) = unsafe { (cache.keys(1, 2, HEADS - 1, none), cache.keys(1, 3, HEADS - 1, none)) };
        assert!(keys.codes.iter().any(|key| *key != 0.0) && other.codes.iter().all(|key| *key == 0.0));
    }

    #[test]
    #[should_panic(expected = "no K/V block 4")]
    fn a_block_too_many_is_refused() {
        let mut cache = KvCache::<f32, 2, 8, 16>::new(&[0, 1, 2], 4).unwrap();
        cache.read_block(BlockId(4), &mut []);
    }
}

//! Weight formats of kernels: their tile layout, and the product of a tile with activations.
//!
//! A matrix is stored in tiles of 16 rows. Within a tile, columns follow one another, and the values of the
//! 16 rows are adjacent, so that a vector lane is a row and sums need no horizontal step. A quantised tile
//! holds exactly the bytes of the checkpoint's blocks, in another order.
//!
//! Every product sums a row in the same order for any number of tokens, so a token's result does not depend
//! on its neighbours.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::memory::Plain;
use super::normalise::Normalise;
use super::rows::{Int8Block, Int8Rows, Rows};
use super::simd::{F32s, I32s, LANES, PARTS, TILE, U8s, ask_ahead, at, at_mut, halves, unrolled};
use half::{bf16, f16};
use monomorph_abi::tiles::tile_bytes;
use monomorph_formats::cached::Cached;
use monomorph_formats::{ACTIVATION_BLOCK, Format, ScaleForm};

/// A weight format, as a type.
pub trait WeightFormat: Sized + Send + Sync + 'static {
    /// The format's name and block layout.
    const FORMAT: Format;

    /// Activations `[capacity, N]` in the form that products with this format take.
    type Input<const N: usize>: Input<N>;

    /// The form of the scales beside the codes, if there are some. One form stands for those that differ in
    /// nothing but what a file says of them.
    const SCALES: Option<ScaleForm> = None;

    /// Whether weights are packed as they are after rounding to f16, and not as they are stored.
    #[doc(hidden)]
    const IN_F16: bool = false;

    /// Bytes of a tile of `columns` columns (whole blocks).
    #[doc(hidden)]
    fn tile_bytes(columns: usize) -> usize {
        tile_bytes(Self::FORMAT, Self::SCALES, columns)
    }

    /// Copies one row's bytes, as in the checkpoint, to its place in a tile.
    #[doc(hidden)]
    fn pack(row: &[u8], lane: usize, tile: &mut [u8]);

    /// Copies the scales beside one row to their place in a tile of `columns` columns.
    #[doc(hidden)]
    fn pack_scales(_: &RowScales, _: usize, _: usize, _: &mut [u8]) {}

    /// Decodes row `lane` of a tile, bit for bit as [`monomorph_formats::decode`] does, and with the scales
    /// beside it as [`ScaleForm::apply`] does.
    #[doc(hidden)]
    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]);

    /// The sums over `N` columns of part `part` (`LANES` rows) of a tile, for `M` tokens whose activations
    /// are in consecutive rows of `input`.
    #[doc(hidden)]
    fn product<const M: usize, const N: usize>(
        tile: &[u8],
        part: usize,
        input: &[<Self::Input<N> as Input<N>>::Element],
    ) -> [F32s; M];
}

/// The scales beside the codes of one row.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum RowScales<'a> {
    /// One for all columns.
    Row(f32),
    /// One for every 128 columns.
    Blocks(&'a [f32]),
    /// E4M3 codes, one for every 16 columns, and one for all.
    Groups(&'a [u8], f32),
}

/// Activations in the form that a format's products take.
pub trait Input<const N: usize>: Send + Sync {
    /// The element of a row.
    #[doc(hidden)]
    type Element: Copy;

    /// Room for `capacity` rows.
    #[doc(hidden)]
    fn with_capacity(capacity: usize) -> Self;

    /// `x` itself, if products take f32 activations unchanged.
    #[doc(hidden)]
    fn direct(x: &Rows<N>) -> Option<&Self>;

    /// Rows `row .. row + count`.
    ///
    /// # Safety
    /// No lane writes the rows while the result lives.
    #[doc(hidden)]
    unsafe fn elements(&self, row: usize, count: usize) -> &[Self::Element];

    /// Fills row `row` from f32 activations, padding included.
    ///
    /// # Safety
    /// No other lane reads or writes the row meanwhile.
    #[doc(hidden)]
    unsafe fn fill<P: Normalise<N>>(&self, row: usize, x: &[f32], norm: &P);

    /// Copies row `source` of `from` to row `row`.
    ///
    /// # Safety
    /// No other lane reads or writes the row meanwhile, and none writes its source; they are not the same.
    #[doc(hidden)]
    unsafe fn copy(&self, row: usize, from: &Self, source: usize);
}

impl<const N: usize> Input<N> for Rows<N> {
    type Element = f32;

    fn with_capacity(capacity: usize) -> Self {
        Rows::new(capacity)
    }

    #[inline(always)]
    fn direct(x: &Rows<N>) -> Option<&Self> {
        Some(x)
    }

    #[inline(always)]
    unsafe fn elements(&self, row: usize, count: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.many_padded(row, count) }
    }

    #[inline(always)]
    unsafe fn fill<P: Normalise<N>>(&self, row: usize, x: &[f32], norm: &P) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.padded_mut(row) };
        let scale = norm.scale(x);
        for i in (0..Self::PADDED).step_by(LANES) {
            norm.apply(F32s::load(at(x, i)), i, scale).store(at_mut(out, i));
        }
    }

    #[inline(always)]
    unsafe fn copy(&self, row: usize, from: &Self, source: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.padded_mut(row).copy_from_slice(from.padded(source)) };
    }
}

impl<const N: usize> Input<N> for Int8Rows<N> {
    type Element = Int8Block;

    fn with_capacity(capacity: usize) -> Self {
        Int8Rows::new(capacity)
    }

    #[inline(always)]
    fn direct(_: &Rows<N>) -> Option<&Self> {
        None
    }

    #[inline(always)]
    unsafe fn elements(&self, row: usize, count: usize) -> &[Int8Block] {
        // SAFETY: the caller's promise.
        unsafe { self.blocks(row, count) }
    }

    #[inline(always)]
    unsafe fn fill<P: Normalise<N>>(&self, row: usize, x: &[f32], norm: &P) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.blocks_mut(row) };
        let scale = norm.scale(x);
        for (b, out) in out.iter_mut().enumerate() {
            let mut block = [0.0; ACTIVATION_BLOCK];
            for i in (0..ACTIVATION_BLOCK).step_by(LANES) {
                let from = b * ACTIVATION_BLOCK + i;
                norm.apply(F32s::load(at(x, from)), from, scale).store(at_mut(&mut block, i));
            }
            *out = Int8Block::new(&block);
        }
    }

    #[inline(always)]
    unsafe fn copy(&self, row: usize, from: &Self, source: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.blocks_mut(row).copy_from_slice(&from.blocks(source, 1)[..Self::BLOCKS]) };
    }
}

/// Weights in q8_0, multiplied with int8 activations.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;

/// Weights in q4_1, multiplied with int8 activations.
#[derive(Clone, Copy, Debug)]
pub struct Q4_1;

/// The scales (or minima) of a part, which begin at `from` in a tile block.
#[inline(always)]
fn scales(block: &[u8], from: usize, part: usize) -> F32s {
    F32s::from_f16(&halves(at(block, from + part * 2 * LANES)))
}

/// Bytes of 16 rows' f16 scales.
const SCALES: usize = 2 * TILE;

/// A tile block of q4_1: four times 16 rows' words of four bytes (low nibbles: columns `4j ..`, high nibbles:
/// columns `16 + 4j ..`), then 16 scales, then 16 minima.
impl WeightFormat for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    type Input<const N: usize> = Int8Rows<N>;

    fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
        for (block, place) in row.as_chunks::<20>().0.iter().zip(tile.as_chunks_mut::<320>().0) {
            for j in 0..4 {
                *at_mut::<u8, 4>(place, j * 64 + lane * 4) = *at(block, 4 + 4 * j);
            }
            *at_mut::<u8, 2>(place, 256 + 2 * lane) = *at(block, 0);
            *at_mut::<u8, 2>(place, 256 + SCALES + 2 * lane) = *at(block, 2);
        }
    }

    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
        for (block, out) in tile.as_chunks::<320>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let d = f16::from_le_bytes(*at(block, 256 + 2 * lane)).to_f32();
            let m = f16::from_le_bytes(*at(block, 256 + SCALES + 2 * lane)).to_f32();
            for i in 0..16 {
                let q = block[i / 4 * 64 + lane * 4 + i % 4];
                out[i] = d * f32::from(q & 15) + m;
                out[i + 16] = d * f32::from(q >> 4) + m;
            }
        }
    }

    #[inline(always)]
    fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[Int8Block]) -> [F32s; M] {
        let count = Int8Rows::<N>::BLOCKS;
        // The compiler knows this one length, so that no index below needs a check.
        let stride = Int8Rows::<N>::STRIDE;
        let input = &input[..M * stride];
        let blocks = &tile.as_chunks::<320>().0[..count];
        let mut sums = [F32s::zero(); M];
        for (b, block) in blocks.iter().enumerate() {
            ask_ahead(block, part);
            let mut codes = [U8s::load(at(block, part * 4 * LANES)); 8];
            for j in 0..4 {
                let bytes = U8s::load(at(block, j * 64 + part * 4 * LANES));
                codes[j] = bytes.low();
                codes[j + 4] = bytes.high();
            }
            let (d, m) = (scales(block, 256, part), scales(block, 256 + SCALES, part));
            unrolled!(t < M, {
                let x = &input[t * stride + b];
                let mut dot = I32s::zero();
                for j in 0..8 {
                    dot = dot.dot_nibbles(codes[j], x.words[j]);
                }
                let base = m.mul_add(F32s::splat(x.scaled_sum), sums[t]);
                sums[t] = (d * F32s::splat(x.scale)).mul_add(dot.to_f32(), base);
            });
        }
        sums
    }
}

/// A tile block of q8_0: eight times 16 rows' words of four weights (columns `4j ..`), each stored plus 128,
/// then 16 scales.
impl WeightFormat for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    type Input<const N: usize> = Int8Rows<N>;

    fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
        for (block, place) in row.as_chunks::<34>().0.iter().zip(tile.as_chunks_mut::<544>().0) {
            for j in 0..8 {
                let word = u32::from_le_bytes(*at(block, 2 + 4 * j)) ^ 0x8080_8080;
                *at_mut::<u8, 4>(place, j * 64 + lane * 4) = word.to_le_bytes();
            }
            *at_mut::<u8, 2>(place, 512 + 2 * lane) = *at(block, 0);
        }
    }

    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
        for (block, out) in tile.as_chunks::<544>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let d = f16::from_le_bytes(*at(block, 512 + 2 * lane)).to_f32();
            for (i, out) in out.iter_mut().enumerate() {
                let q = block[i / 4 * 64 + lane * 4 + i % 4] ^ 0x80;
                *out = d * f32::from(q as i8);
            }
        }
    }

    #[inline(always)]
    fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[Int8Block]) -> [F32s; M] {
        let count = Int8Rows::<N>::BLOCKS;
        // The compiler knows this one length, so that no index below needs a check.
        let stride = Int8Rows::<N>::STRIDE;
        let input = &input[..M * stride];
        let blocks = &tile.as_chunks::<544>().0[..count];
        let mut sums = [F32s::zero(); M];
        for (b, block) in blocks.iter().enumerate() {
            ask_ahead(block, part);
            let mut weights = [U8s::load(at(block, part * 4 * LANES)); 8];
            for j in 1..8 {
                weights[j] = U8s::load(at(block, j * 64 + part * 4 * LANES));
            }
            let d = scales(block, 512, part);
            unrolled!(t < M, {
                let x = &input[t * stride + b];
                let mut dot = I32s::biased(x.bias);
                for j in 0..8 {
                    dot = dot.dot_biased(weights[j], x.words[j]);
                }
                sums[t] = (d * F32s::splat(x.scale)).mul_add(dot.to_f32(), sums[t]);
            });
        }
        sums
    }
}

/// An element of cached keys and values, or of weights stored as floats.
pub trait KvElement: Plain {
    /// The format's name.
    const FORMAT: Cached;
    /// The nearest value, ties to even.
    #[doc(hidden)]
    fn from_f32(x: f32) -> Self;
    /// A vector of elements, widened to f32.
    #[doc(hidden)]
    fn widen(x: &[Self]) -> F32s;
}

impl KvElement for f32 {
    const FORMAT: Cached = Cached::F32;

    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn widen(x: &[f32]) -> F32s {
        F32s::load(at(x, 0))
    }
}

impl KvElement for bf16 {
    const FORMAT: Cached = Cached::Bf16;

    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    #[inline(always)]
    fn widen(x: &[bf16]) -> F32s {
        let bits: [u16; LANES] = at::<_, LANES>(x, 0).map(bf16::to_bits);
        F32s::from_bf16(&bits)
    }
}

impl KvElement for f16 {
    const FORMAT: Cached = Cached::F16;

    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }

    #[inline(always)]
    fn widen(x: &[f16]) -> F32s {
        let bits: [u16; LANES] = at::<_, LANES>(x, 0).map(f16::to_bits);
        F32s::from_f16(&bits)
    }
}

const _: () = assert!(PARTS * LANES == TILE);

//! Weight formats that are decoded to f32 in registers and multiplied by f32 activations: those of floats
//! here, those of codes with scales beside them in `codes`.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::format::{RowScales, WeightFormat};
use super::rows::Rows;
use super::simd::{F32s, LANES, TILE, ask_ahead, at, halves, unrolled, words};
use half::{bf16, f16};
use monomorph_formats::{Format, ScaleForm};

/// A format whose products take f32 activations. As a [`WeightFormat`] it takes them unrounded;
/// [`super::InF16`] and [`super::InE4m3`] round them.
pub trait Decoded: Sized + Send + Sync + 'static {
    /// The format's name and block layout.
    const FORMAT: Format;

    /// As [`WeightFormat::SCALES`].
    const SCALES: Option<ScaleForm> = None;

    /// As [`WeightFormat::pack`].
    #[doc(hidden)]
    fn pack(row: &[u8], lane: usize, tile: &mut [u8]);

    /// As [`WeightFormat::pack_scales`].
    #[doc(hidden)]
    fn pack_scales(_: &RowScales, _: usize, _: usize, _: &mut [u8]) {}

    /// As [`WeightFormat::unpack`].
    #[doc(hidden)]
    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]);

    /// As [`WeightFormat::product`], of consecutive rows of [`Rows`].
    #[doc(hidden)]
    fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[f32]) -> [F32s; M];
}

impl<D: Decoded> WeightFormat for D {
    const FORMAT: Format = D::FORMAT;
    const SCALES: Option<ScaleForm> = D::SCALES;
    type Input<const N: usize> = Rows<N>;

    fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
        D::pack(row, lane, tile);
    }

    fn pack_scales(scales: &RowScales, columns: usize, lane: usize, tile: &mut [u8]) {
        D::pack_scales(scales, columns, lane, tile);
    }

    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
        D::unpack(tile, lane, out);
    }

    #[inline(always)]
    fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[f32]) -> [F32s; M] {
        D::product::<M, N>(tile, part, input)
    }
}

/// Weights in f32.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// Weights in bf16.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

/// Weights in f16.
#[derive(Clone, Copy, Debug)]
pub struct F16;

/// The float formats differ in how a vector of weights is loaded.
macro_rules! float_format {
    ($name:ident, $format:ident, $bytes:literal, $load:expr, $one:expr) => {
        impl Decoded for $name {
            const FORMAT: Format = Format::$format;

            fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
                let elements = row.as_chunks::<$bytes>().0;
                let places = tile.as_chunks_mut::<{ $bytes * TILE }>().0;
                for (element, place) in elements.iter().zip(places) {
                    place[$bytes * lane..$bytes * lane + $bytes].copy_from_slice(element);
                }
            }

            fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
                for (column, out) in tile.as_chunks::<{ $bytes * TILE }>().0.iter().zip(out) {
                    *out = $one(*at(column, $bytes * lane));
                }
            }

            #[inline(always)]
            fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[f32]) -> [F32s; M] {
                // The compiler knows this one length, so that no index below needs a check.
                let input = &input[..M * Rows::<N>::STRIDE];
                let columns = &tile.as_chunks::<{ $bytes * TILE }>().0[..N];
                // Even and odd columns by themselves: one sum after the other would be waited for.
                let (mut even, mut odd) = ([F32s::zero(); M], [F32s::zero(); M]);
                let (pairs, rest) = columns.as_chunks::<2>();
                for (k, pair) in pairs.iter().enumerate() {
                    ask_ahead(pair.as_flattened(), part);
                    let [first, second] = pair.each_ref().map(|it| $load(at(it, part * $bytes * LANES)));
                    unrolled!(t < M, {
                        let x: &[f32; 2] = at(input, t * Rows::<N>::STRIDE + 2 * k);
                        even[t] = first.mul_add(F32s::splat(x[0]), even[t]);
                        odd[t] = second.mul_add(F32s::splat(x[1]), odd[t]);
                    });
                }
                for column in rest {
                    let weights = $load(at(column, part * $bytes * LANES));
                    unrolled!(t < M, {
                        let x = input[t * Rows::<N>::STRIDE + N - 1];
                        even[t] = weights.mul_add(F32s::splat(x), even[t]);
                    });
                }
                unrolled!(t < M, {
                    even[t] = even[t] + odd[t];
                });
                even
            }
        }
    };
}

float_format!(F32, F32, 4, |bytes: &[u8; 4 * LANES]| F32s::load(&words(bytes)), f32::from_le_bytes);
float_format!(Bf16, Bf16, 2, |bytes: &[u8; 2 * LANES]| F32s::from_bf16(&halves(bytes)), |bytes| {
    bf16::from_le_bytes(bytes).to_f32()
});
float_format!(F16, F16, 2, |bytes: &[u8; 2 * LANES]| F32s::from_f16(&halves(bytes)), |bytes| {
    f16::from_le_bytes(bytes).to_f32()
});

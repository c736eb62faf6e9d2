//! Products whose activations are rounded to narrower floats: in f16, each row under a power of two, and in
//! e4m3, every 128 columns under a scale. What is rounded is kept in f32, which holds it exactly, and the
//! products are those of unrounded activations.

use super::decoded::Decoded;
use super::format::{Input, RowScales, WeightFormat};
use super::normalise::Normalise;
use super::rows::Rows;
use super::simd::{F32s, LANES, at};
use half::bf16;
use monomorph_formats::{
    E4M3_GROUP, Format, ScaleForm, decode, e4m3_scale, encode, half_scale, through_halves,
};
use std::marker::PhantomData;

/// Weights in format `D` multiplied by activations that `R` rounds.
#[derive(Clone, Copy, Debug)]
pub struct In<R, D>(PhantomData<(R, D)>);

/// Weights in format `D` multiplied in f16: activations are rounded, and so are weights stored as floats, as
/// [`through_halves`] says. Codes with scales beside them are exact in f16.
pub type InF16<D> = In<ToF16, D>;

/// Weights in format `D` multiplied by activations in e4m3, as [`monomorph_formats::through_e4m3`] says.
pub type InE4m3<D> = In<ToE4m3, D>;

/// Rounds what products multiply.
pub trait Rounding: Send + Sync + 'static {
    /// As [`WeightFormat::IN_F16`], of weights without scales beside them.
    #[doc(hidden)]
    const IN_F16: bool = false;

    /// Rounds a row of activations in place, padding of zeros included.
    #[doc(hidden)]
    fn round(row: &mut [f32]);

    /// As [`WeightFormat::pack`], of weights as they are multiplied: as stored, where nothing else is said.
    #[doc(hidden)]
    fn pack<D: Decoded>(row: &[u8], lane: usize, tile: &mut [u8]) {
        D::pack(row, lane, tile);
    }
}

/// To f16, under a power of two.
#[derive(Clone, Copy, Debug)]
pub struct ToF16;

/// To e4m3, every 128 columns under a scale.
#[derive(Clone, Copy, Debug)]
pub struct ToE4m3;

/// The number nearest to `x` that a float of `BITS` bits and the least exponent `LEAST` has, ties to even.
/// Numbers beyond its largest are not cut off.
#[inline(always)]
fn nearest<const BITS: i32, const LEAST: i32>(x: f32) -> f32 {
    // Adding and subtracting one and a half of the power of two whose f32 have the spacing wanted leaves no
    // room for further bits.
    let least = ((LEAST + 127) as u32) << 23;
    let power = (x.to_bits() & 0x7f80_0000).max(least).wrapping_add(((24 - BITS) as u32) << 23);
    let big = 1.5 * f32::from_bits(power);
    (x + big) - big
}

/// The largest magnitude of whole vectors. NaN counts for nothing.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let mut largest = F32s::zero();
    for i in (0..row.len()).step_by(LANES) {
        let v = F32s::load(at(row, i));
        largest = v.max(F32s::zero() - v).max(largest);
    }
    largest.largest()
}

impl Rounding for ToF16 {
    const IN_F16: bool = true;

    #[inline(always)]
    fn round(row: &mut [f32]) {
        let scale = half_scale(largest(row));
        let back = 1.0 / scale;
        row.iter_mut().for_each(|x| *x = nearest::<11, -14>(*x * scale) * back);
    }

    fn pack<D: Decoded>(row: &[u8], lane: usize, tile: &mut [u8]) {
        if D::SCALES.is_some() || is_f16_already(D::FORMAT, row) {
            return D::pack(row, lane, tile);
        }
        // What a row of any stored float becomes is a float of that format again: rounding leaves no more
        // bits than there were.
        let mut values = vec![0.0; row.len() / D::FORMAT.block_bytes()];
        decode(D::FORMAT, row, &mut values);
        D::pack(&encode(D::FORMAT, &through_halves(&values)), lane, tile);
    }
}

impl Rounding for ToE4m3 {
    #[inline(always)]
    fn round(row: &mut [f32]) {
        for group in row.chunks_mut(E4M3_GROUP) {
            let nan = group.iter().fold(false, |nan, x| nan | x.is_nan());
            let (scale, inverse) = e4m3_scale(if nan { f32::NAN } else { largest(group) });
            group.iter_mut().for_each(|x| *x = scale * nearest::<4, -6>(*x * inverse));
        }
    }
}

/// Activations `[capacity, N]`, rounded.
#[derive(Debug)]
pub struct RoundedRows<R, const N: usize> {
    rows: Rows<N>,
    rounding: PhantomData<R>,
}

impl<R: Rounding, const N: usize> Input<N> for RoundedRows<R, N> {
    type Element = f32;

    fn with_capacity(capacity: usize) -> Self {
        RoundedRows { rows: Rows::new(capacity), rounding: PhantomData }
    }

    #[inline(always)]
    fn direct(_: &Rows<N>) -> Option<&Self> {
        None
    }

    #[inline(always)]
    unsafe fn elements(&self, row: usize, count: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.rows.elements(row, count) }
    }

    #[inline(always)]
    unsafe fn fill<P: Normalise<N>>(&self, row: usize, x: &[f32], norm: &P) {
        // SAFETY: the caller's promise.
        unsafe { self.rows.fill(row, x, norm) };
        // SAFETY: as above.
        R::round(unsafe { self.rows.padded_mut(row) });
    }

    #[inline(always)]
    unsafe fn copy(&self, row: usize, from: &Self, source: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.rows.copy(row, &from.rows, source) };
    }
}

impl<R: Rounding, D: Decoded> WeightFormat for In<R, D> {
    const FORMAT: Format = D::FORMAT;
    const SCALES: Option<ScaleForm> = D::SCALES;
    const IN_F16: bool = R::IN_F16 && D::SCALES.is_none();
    type Input<const N: usize> = RoundedRows<R, N>;

    fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
        R::pack::<D>(row, lane, tile);
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

/// Whether a row is of bf16 so near to each other that rounding changes none: eight bits of what is 2^-31 of
/// the largest are there still. Rows that are not take longer to load.
fn is_f16_already(format: Format, row: &[u8]) -> bool {
    let exponent = |bytes: &[u8; 2]| bf16::from_le_bytes(*bytes).to_bits() >> 7 & 0xff;
    let is_zero = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7fff == 0;
    let (mut least, mut most) = (u16::MAX, 0);
    for bytes in row.as_chunks::<2>().0 {
        most = exponent(bytes).max(most);
        least = if is_zero(bytes) { least } else { exponent(bytes).min(least) };
    }
    format == Format::Bf16 && (least > most || (least > 0 && most - least <= 31))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::TILE;
    use monomorph_formats::through_e4m3;

    /// Rows of every size of number, of ties, and of what is no number.
    fn rows() -> Vec<[f32; 256]> {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let mut rows = vec![[0.0; 256], [-0.0; 256]];
        for magnitude in [1.0, 1e-3, 1e4, 1e30, 3e38, 1e-30, 1e-37, 1e-40, 448.0] {
            for _ in 0..40 {
                // The second half lies far below the first, down to where nothing is left of it.
                let below = 2f32.powf(45.0 * random());
                rows.push(std::array::from_fn(|i| random() * magnitude * if i < 128 { 1.0 } else { below }));
            }
        }
        // Ties of f16 and of e4m3, the largest a power of two or 448.
        rows.push(std::array::from_fn(|i| if i == 0 { 16384.0 } else { i as f32 * 8.0 + 4.0 }));
        rows.push(std::array::from_fn(|i| if i % 128 == 0 { 448.0 } else { i as f32 / 8.0 }));
        rows.push(std::array::from_fn(|i| if i % 128 == 0 { 448.0 } else { i as f32 / 2048.0 }));
        let mut mixed: [f32; 256] = std::array::from_fn(|i| i as f32);
        mixed[3] = f32::NAN;
        rows.push(mixed);
        rows
    }

    fn check(round: fn(&mut [f32]), definition: fn(&[f32]) -> Vec<f32>) {
        for row in rows() {
            let mut found = row;
            round(&mut found);
            for (i, (found, expected)) in found.iter().zip(definition(&row)).enumerate() {
                // Sums do not see the sign of a zero.
                let same = *found == expected || (found.is_nan() && expected.is_nan());
                assert!(same, "{} became {found:e} and not {expected:e}, element {i}", row[i]);
            }
        }
    }

    #[test]
    fn rounding_to_f16_follows_the_definition() {
        check(ToF16::round, through_halves);
    }

    #[test]
    fn rounding_to_e4m3_follows_the_definition() {
        check(ToE4m3::round, through_e4m3);
    }

    #[test]
    fn weights_of_floats_are_packed_as_f16_has_them() {
        fn check<D: Decoded>() {
            for row in rows() {
                let stored = encode(D::FORMAT, &row);
                let (mut values, mut found) = ([0.0; 256], [0.0; 256]);
                decode(D::FORMAT, &stored, &mut values);
                if values.iter().any(|value| !value.is_finite()) {
                    // Refused before it is packed.
                    continue;
                }
                let mut tile = vec![0; InF16::<D>::tile_bytes(256)];
                InF16::<D>::pack(&stored, TILE - 1, &mut tile);
                InF16::<D>::unpack(&tile, TILE - 1, &mut found);
                assert_eq!(found[..], through_halves(&values), "{} of {row:?}", D::FORMAT);
            }
        }
        check::<crate::cpu::F32>();
        check::<crate::cpu::Bf16>();
        check::<crate::cpu::F16>();
    }
}

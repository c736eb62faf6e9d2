//! Rows stored as f16 with a scale: the operands of products in f16.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The power of two that brings a row whose largest magnitude is `largest` into `[2^14, 2^15)`, limited so
/// that it and its inverse are normal f32 numbers. This is the definition that the interpreter, the loader
/// and every kernel follow bit for bit.
pub fn half_scale(largest: f32) -> f32 {
    let exponent = largest.to_bits() >> 23 & 0xff;
    f32::from_bits((127 + 14 + 127 - exponent).min(253) << 23)
}

/// Rounds `row * half_scale` to f16, to nearest even, into `out`; returns the factor that undoes the scaling.
///
/// A value is exact if it has at most 11 significant bits and none of them is below `2^-24` after scaling;
/// for bf16, that is down to 2^-31 of the row's largest.
///
/// # Panics
/// If `row` and `out` differ in length.
pub fn encode_halves(row: &[f32], out: &mut [f16]) -> f32 {
    let scale = half_scale(row.iter().fold(0.0f32, |m, v| m.max(v.abs())));
    const PART: usize = 64;
    assert_eq!(row.len(), out.len(), "a half for each value");
    let mut scaled = [0.0f32; PART];
    for (row, out) in row.chunks(PART).zip(out.chunks_mut(PART)) {
        scaled.iter_mut().zip(row).for_each(|(scaled, v)| *scaled = v * scale);
        out.convert_from_f32_slice(&scaled[..row.len()]);
    }
    1.0 / scale
}

/// The row as a product in f16 sees it.
pub fn through_halves(row: &[f32]) -> Vec<f32> {
    let mut halves = vec![f16::ZERO; row.len()];
    let unscale = encode_halves(row, &mut halves);
    halves.iter().map(|half| half.to_f32() * unscale).collect()
}

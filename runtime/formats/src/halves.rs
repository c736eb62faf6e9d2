//! Rows in f16 under a scale: the operands of a product whose compute format is f16.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The power of two that brings a row whose largest magnitude is `largest` into `[2^14, 2^15)`, as far as
/// both it and its inverse are normal numbers of f32. This is the definition that the interpreter, the loader
/// and every kernel follow bit for bit.
pub fn half_scale(largest: f32) -> f32 {
    let exponent = largest.to_bits() >> 23 & 0xff;
    f32::from_bits((127 + 14 + 127 - exponent).min(253) << 23)
}

/// Rounds `row * half_scale` to f16, to nearest even, into `out`; returns what the halves are to be
/// multiplied by.
///
/// A value is exact where it takes at most 11 bits and none of them is below `2^-24` after scaling: one of
/// bf16 as far as 2^-31 below the row's largest.
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

/// The row as a product in f16 meets it.
pub fn through_halves(row: &[f32]) -> Vec<f32> {
    let mut halves = vec![f16::ZERO; row.len()];
    let unscale = encode_halves(row, &mut halves);
    halves.iter().map(|half| half.to_f32() * unscale).collect()
}

//! The 8-bit and 4-bit floats (OCP FP8 specification 1.0, "E4M3"; OCP Microscaling specification 1.0,
//! "E2M1").

/// The values of the E2M1 codes: 1 sign bit, 2 exponent bits, 1 mantissa bit; no infinities, no NaN.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The largest magnitude of E4M3.
pub const E4M3_MAX: f32 = 448.0;

/// The largest magnitude of E2M1.
pub const E2M1_MAX: f32 = 6.0;

/// The value of an E4M3 code: 1 sign bit, 4 exponent bits (bias 7), 3 mantissa bits; no infinities; NaN if
/// all bits but the sign are set.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest E4M3 code, ties to even; magnitudes beyond 448 become 448.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(E4M3_MAX);
    // Below 2^-6, codes have the same spacing as just above it.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (magnitude / 2f32.powi(exponent - 3)).round_ties_even() as i32;
    sign | ((exponent + 7) * 8 + steps - 8) as u8
}

/// The value of an E2M1 code in the lower four bits.
pub fn e2m1_to_f32(code: u8) -> f32 {
    E2M1[usize::from(code & 15)]
}

/// The nearest E2M1 code, ties to even. Magnitudes beyond 6 become 6; NaN, which has no code, becomes 0.
pub fn f32_to_e2m1(value: f32) -> u8 {
    let a = value.abs();
    // Counts the midpoints between neighbours below the value; a midpoint itself rounds to the neighbour with
    // the even code.
    let below = [a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0];
    let code = below.into_iter().filter(|it| *it).count() as u8;
    if value.is_sign_negative() { code | 8 } else { code }
}

//! The int8 rounding of activations for products with quantised weights.

/// Number of activations that share one scale.
pub const ACTIVATION_BLOCK: usize = 32;

/// 32 activations in int8: element `i` is `scale * values[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantisedBlock {
    /// Largest magnitude of the block over 127; 0 for a block of zeros.
    pub scale: f32,
    /// Rounded to nearest, ties to even; within ±127.
    pub values: [i8; ACTIVATION_BLOCK],
}

/// Rounds 32 activations to int8. This is the definition that the interpreter and every kernel follow bit
/// for bit: `scale = max|x| / 127`, `q = round_ties_even(x * (127 / max|x|))`, all in f32.
pub fn quantise_block(x: &[f32; ACTIVATION_BLOCK]) -> QuantisedBlock {
    let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return QuantisedBlock { scale: 0.0, values: [0; ACTIVATION_BLOCK] };
    }
    let inverse = 127.0 / largest;
    QuantisedBlock {
        scale: largest / 127.0,
        values: std::array::from_fn(|i| (x[i] * inverse).round_ties_even() as i8),
    }
}

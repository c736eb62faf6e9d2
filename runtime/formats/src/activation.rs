//! The roundings of activations for products with quantised weights: int8, and e4m3.

use crate::{E4M3_MAX, QUANTISED_MIN, e4m3_to_f32, f32_to_e4m3, magnitude};

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

/// Number of activations that share one scale in e4m3: as many as a block of fp8 weights has columns.
pub const E4M3_GROUP: usize = 128;

/// The scale of a group of activations in e4m3 whose largest magnitude is `largest`, and what they are
/// multiplied by before they are rounded. Both are 0 for a group of zeros, and for one of so little that one
/// of them would not be a normal number.
///
/// This is the definition that the interpreter and every kernel follow bit for bit: `scale = max|x| / 448`,
/// `code = e4m3(x * (448 / max|x|))`, all in f32, to nearest even.
pub fn e4m3_scale(largest: f32) -> (f32, f32) {
    if largest <= QUANTISED_MIN { (0.0, 0.0) } else { (largest / E4M3_MAX, E4M3_MAX / largest) }
}

/// The row as a product in fp8 sees it, group by group.
pub fn through_e4m3(row: &[f32]) -> Vec<f32> {
    let group = |group: &[f32]| {
        let (scale, inverse) = e4m3_scale(magnitude(group));
        group.iter().map(|x| scale * e4m3_to_f32(f32_to_e4m3(x * inverse))).collect::<Vec<_>>()
    };
    row.chunks(E4M3_GROUP).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_in_e4m3_keeps_its_largest_and_four_bits_of_each() {
        let mut row = vec![0.0; 2 * E4M3_GROUP + 1];
        // 400 is a tie between 384 and 416, twelve and thirteen steps, and 17 one between 16 and 18; 0.4 of
        // the least step is nothing.
        row[..4].copy_from_slice(&[448.0, 400.0, -17.0, 0.4 / 512.0]);
        (row[E4M3_GROUP], row[2 * E4M3_GROUP]) = (7e-39, -3.5);
        let found = through_e4m3(&row);
        assert_eq!(found[..4], [448.0, 384.0, -16.0, 0.0]);
        assert_eq!((found[E4M3_GROUP], found[2 * E4M3_GROUP], found.len()), (0.0, -3.5, row.len()));
        assert_eq!((e4m3_scale(0.0), e4m3_scale(448.0)), ((0.0, 0.0), (1.0, 1.0)));
    }
}

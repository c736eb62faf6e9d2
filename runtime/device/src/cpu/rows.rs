//! Activations: one row per token, shared by the lanes.

use super::memory::{Memory, Plain};
use super::simd::{F32s, LANES, TILE, at, at_mut};
use monomorph_formats::ACTIVATION_BLOCK;

/// f32 activations `[capacity, N]`. Rows are padded with zeros to a multiple of 16.
///
/// Phase functions write them through shared references, each lane its own part; while no job runs, the owner
/// reads and writes them.
#[derive(Debug)]
pub struct Rows<const N: usize> {
    data: Memory<f32>,
}

impl<const N: usize> Rows<N> {
    /// Elements of a row, padding included.
    pub(crate) const PADDED: usize = N.next_multiple_of(TILE);

    /// Elements between the starts of consecutive rows. It is an odd number of cache lines, so that the rows
    /// that a product reads together do not compete for the same cache sets.
    pub(crate) const STRIDE: usize = ((Self::PADDED / TILE) | 1) * TILE;

    /// `capacity` rows of zeros; pages become resident when first written.
    pub fn new(capacity: usize) -> Rows<N> {
        Rows { data: Memory::zeroed(capacity * Self::STRIDE) }
    }

    /// Number of rows.
    pub fn capacity(&self) -> usize {
        self.data.len() / Self::STRIDE
    }

    /// Row `row`.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&mut self, row: usize) -> &[f32; N] {
        at(self.data.all_mut(), row * Self::STRIDE)
    }

    /// Row `row`, mutably.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32; N] {
        at_mut(self.data.all_mut(), row * Self::STRIDE)
    }

    /// A whole row, padding included.
    ///
    /// # Safety
    /// No lane writes the row while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn padded(&self, row: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(row * Self::STRIDE, Self::PADDED) }
    }

    /// Rows `row .. row + count`, `STRIDE` elements each.
    ///
    /// # Safety
    /// No lane writes the rows while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn many_padded(&self, row: usize, count: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(row * Self::STRIDE, count * Self::STRIDE) }
    }

    /// A whole row, padding included, mutably.
    ///
    /// # Safety
    /// No other lane reads or writes the row while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn padded_mut(&self, row: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice_mut(row * Self::STRIDE, Self::PADDED) }
    }

    /// Elements `from .. from + len` of a row.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, row: usize, from: usize, len: usize) -> &[f32] {
        debug_assert!(from + len <= Self::PADDED);
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(row * Self::STRIDE + from, len) }
    }

    /// Elements `from .. from + len` of a row, mutably.
    ///
    /// # Safety
    /// No other lane reads or writes them while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn part_mut(&self, row: usize, from: usize, len: usize) -> &mut [f32] {
        debug_assert!(from + len <= Self::PADDED);
        // SAFETY: the caller's promise.
        unsafe { self.data.slice_mut(row * Self::STRIDE + from, len) }
    }

    /// One vector of a row, mutably.
    ///
    /// # Safety
    /// No other lane reads or writes it while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn vector_mut(&self, row: usize, from: usize) -> &mut [f32; LANES] {
        // SAFETY: the caller's promise.
        at_mut(unsafe { self.part_mut(row, from, LANES) }, 0)
    }
}

/// 32 activations rounded to int8, as products take them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct Int8Block {
    /// The int8 values, four to a word, the first in the lowest byte.
    pub(crate) words: [i32; ACTIVATION_BLOCK / 4],
    /// The factor of the values.
    pub(crate) scale: f32,
    /// The scale times the sum of the values.
    pub(crate) scaled_sum: f32,
    /// -128 times the sum of the values.
    pub(crate) bias: i32,
    /// The sums of the first and of the last 16 values.
    pub(crate) halves: [i16; 2],
}

// SAFETY: `repr(C)` of numbers without padding.
unsafe impl Plain for Int8Block {}

impl Int8Block {
    /// Rounds 32 activations, bit for bit as [`monomorph_formats::quantise_block`] does.
    #[inline(always)]
    pub(crate) fn new(x: &[f32; ACTIVATION_BLOCK]) -> Int8Block {
        // `max` returns its second operand if the first is NaN, so NaN is ignored, as in the definition.
        let mut largest = F32s::zero();
        for i in (0..ACTIVATION_BLOCK).step_by(LANES) {
            let v = F32s::load(at(x, i));
            largest = v.max(F32s::zero() - v).max(largest);
        }
        let largest = largest.largest();
        if largest == 0.0 {
            return Int8Block { words: [0; _], scale: 0.0, scaled_sum: 0.0, bias: 0, halves: [0; 2] };
        }
        let inverse = 127.0 / largest;
        let mut values = [0; ACTIVATION_BLOCK];
        let sum = if inverse.is_finite() {
            super::simd::quantise(x, inverse, &mut values)
        } else {
            // Magnitudes below 3.8e-37: the vector conversion does not saturate as the definition does.
            values = monomorph_formats::quantise_block(x).values;
            values.iter().map(|v| i32::from(*v)).sum()
        };
        let scale = largest / 127.0;
        let words = std::array::from_fn(|i| {
            let [a, b, c, d] = *at(&values, 4 * i);
            i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
        });
        let first: i32 = values[..ACTIVATION_BLOCK / 2].iter().map(|v| i32::from(*v)).sum();
        let halves = [first as i16, (sum - first) as i16];
        Int8Block { words, scale, scaled_sum: scale * sum as f32, bias: -128 * sum, halves }
    }

    #[cfg(test)]
    pub(crate) fn values(&self) -> [i8; ACTIVATION_BLOCK] {
        std::array::from_fn(|i| self.words[i / 4].to_le_bytes()[i % 4] as i8)
    }
}

/// Activations `[capacity, N]` rounded to int8 with a scale per 32.
#[derive(Debug)]
pub struct Int8Rows<const N: usize> {
    data: Memory<Int8Block>,
}

impl<const N: usize> Int8Rows<N> {
    /// Blocks per row.
    pub(crate) const BLOCKS: usize = {
        assert!(N.is_multiple_of(ACTIVATION_BLOCK), "quantised matrices need columns in whole blocks of 32");
        N / ACTIVATION_BLOCK
    };

    /// Blocks between the starts of consecutive rows; odd for the same reason as in [`Rows`].
    pub(crate) const STRIDE: usize = Self::BLOCKS | 1;

    pub(crate) fn new(capacity: usize) -> Int8Rows<N> {
        Int8Rows { data: Memory::zeroed(capacity * Self::STRIDE) }
    }

    /// The blocks of rows `row .. row + count`, `STRIDE` each.
    ///
    /// # Safety
    /// No lane writes the rows while the result lives.
    #[inline(always)]
    pub(crate) unsafe fn blocks(&self, row: usize, count: usize) -> &[Int8Block] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice(row * Self::STRIDE, count * Self::STRIDE) }
    }

    /// The blocks of a row, mutably.
    ///
    /// # Safety
    /// No other lane reads or writes the row while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn blocks_mut(&self, row: usize) -> &mut [Int8Block] {
        // SAFETY: the caller's promise.
        unsafe { self.data.slice_mut(row * Self::STRIDE, Self::BLOCKS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_follows_the_definition_bit_for_bit() {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let mut cases: Vec<[f32; 32]> = vec![[0.0; 32], [f32::NAN; 32], [f32::INFINITY; 32], [-0.0; 32]];
        for magnitude in [1.0, 1e-3, 1e4, 1e30, 3e38, 1e-30, 1e-37, 1e-40, 127.0] {
            for _ in 0..200 {
                cases.push(std::array::from_fn(|_| random() * magnitude));
            }
        }
        // Ties, saturation and special values.
        cases.push(std::array::from_fn(|i| if i == 0 { 127.0 } else { i as f32 - 15.5 }));
        let mut mixed: [f32; 32] = std::array::from_fn(|i| i as f32);
        mixed[3] = f32::NAN;
        cases.push(mixed);
        mixed[4] = f32::NEG_INFINITY;
        cases.push(mixed);
        for case in cases {
            let expected = monomorph_formats::quantise_block(&case);
            let block = Int8Block::new(&case);
            assert_eq!(block.values(), expected.values, "{case:?}");
            assert_eq!(block.scale.to_bits(), expected.scale.to_bits(), "{case:?}");
            let sum: i32 = expected.values.iter().map(|v| i32::from(*v)).sum();
            assert_eq!(block.bias, -128 * sum);
            let first: i32 = expected.values[..16].iter().map(|v| i32::from(*v)).sum();
            assert_eq!(block.halves.map(i32::from), [first, sum - first]);
            assert_eq!(block.scaled_sum.to_bits(), (expected.scale * sum as f32).to_bits());
        }
    }

    #[test]
    fn rows_are_padded_with_zeros_and_separate() {
        let mut rows = Rows::<20>::new(3);
        assert_eq!((Rows::<20>::PADDED, Rows::<20>::STRIDE, rows.capacity()), (32, 48, 3));
        rows.row_mut(1).fill(1.0);
        assert_eq!(rows.row(0), &[0.0; 20]);
        assert_eq!(rows.row(1), &[1.0; 20]);
        // SAFETY: no lanes run.
        assert_eq!(unsafe { &rows.padded(1)[20..] }, &[0.0; 12]);
    }
}

//! AVX2, FMA and F16C.

use std::arch::x86_64::*;

/// f32 elements of a vector.
pub(crate) const LANES: usize = 8;
/// Tokens that share one unpacking of a weight block.
pub(crate) const MAX_TOKENS: usize = 4;
/// Query rows of an attention tile.
pub(crate) const QUERY_ROWS: usize = 3;

/// Eight f32.
#[derive(Clone, Copy)]
pub struct F32s(__m256);

/// Eight i32.
#[derive(Clone, Copy)]
pub struct I32s(__m256i);

/// Eight groups of four bytes.
#[derive(Clone, Copy)]
pub struct U8s(__m256i);

impl F32s {
    intrinsics! {
        pub(crate) fn splat(x: f32) -> F32s { F32s(_mm256_set1_ps(x)) }
        pub(crate) fn load(x: &[f32; LANES]) -> F32s { F32s(_mm256_loadu_ps(x.as_ptr())) }
        pub(crate) fn store(self, out: &mut [f32; LANES]) { _mm256_storeu_ps(out.as_mut_ptr(), self.0) }
        /// From f16 bits.
        pub(crate) fn from_f16(x: &[u16; LANES]) -> F32s {
            F32s(_mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())))
        }
        /// From bf16 bits.
        pub(crate) fn from_bf16(x: &[u16; LANES]) -> F32s {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            F32s(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
        /// From E4M3, divided by 256.
        pub(crate) fn from_e4m3(x: &[u8; LANES]) -> F32s {
            // With its sign extended, a code needs its exponent's highest bit cleared to be f16.
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(x.as_ptr().cast())));
            F32s(_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xbfff_u16 as i16))))
        }
        /// From bytes.
        pub(crate) fn from_u8(x: &[u8; LANES]) -> F32s {
            F32s(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()))))
        }
        /// `levels[code]` for the low four bits of each byte, then for the high ones; the upper half of
        /// `levels` is the lower one negated.
        pub(crate) fn pair_from_levels(levels: &[f32; 16], codes: &[u8; LANES]) -> [F32s; 2] {
            let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.as_ptr().cast()));
            let (levels, sign) = (_mm256_loadu_ps(levels.as_ptr()), _mm256_set1_epi32(i32::MIN));
            let low = _mm256_permutevar8x32_ps(levels, codes);
            let high = _mm256_permutevar8x32_ps(levels, _mm256_srli_epi32::<4>(codes));
            let low_sign = _mm256_and_si256(_mm256_slli_epi32::<28>(codes), sign);
            let high_sign = _mm256_and_si256(_mm256_slli_epi32::<24>(codes), sign);
            [
                F32s(_mm256_xor_ps(low, _mm256_castsi256_ps(low_sign))),
                F32s(_mm256_xor_ps(high, _mm256_castsi256_ps(high_sign))),
            ]
        }
        /// `levels[code]` for the codes of a group from `first` on: code `i` of 16 is four bits of word
        /// `i % 2`, from `i / 2 * 4` on.
        pub(crate) fn group_from_levels(levels: &[f32; 16], words: &[u8; 8], first: usize) -> F32s {
            let shifts = _mm256_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12);
            let shifts = _mm256_add_epi32(shifts, _mm256_set1_epi32(2 * first as i32));
            let codes = _mm256_srlv_epi32(_mm256_set1_epi64x(i64::from_le_bytes(*words)), shifts);
            let sizes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels.as_ptr()), codes);
            let signs = _mm256_and_si256(_mm256_slli_epi32::<28>(codes), _mm256_set1_epi32(i32::MIN));
            F32s(_mm256_xor_ps(sizes, _mm256_castsi256_ps(signs)))
        }
        /// As [`F32s::pair_from_levels`] for codes `d` (which is even) and `d + 1` of eight that share three
        /// bytes: bit `d` of `signs`, and two bits of `magnitudes` from `2 * (d % 4)` on. The lower half of
        /// `levels` repeats four of them.
        pub(crate) fn pair_from_planes(
            levels: &[f32; 16],
            magnitudes: &[u8; LANES],
            signs: &[u8; LANES],
            d: u32
        ) -> [F32s; 2] {
            let sizes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(magnitudes.as_ptr().cast()));
            let signs = _mm256_cvtepu8_epi32(_mm_loadl_epi64(signs.as_ptr().cast()));
            // Of three bits that choose, the highest makes no difference.
            let sizes = _mm256_srl_epi32(sizes, _mm_cvtsi32_si128(2 * (d as i32 % 4)));
            let signs = _mm256_sll_epi32(signs, _mm_cvtsi32_si128(30 - d as i32));
            let (levels, sign) = (_mm256_loadu_ps(levels.as_ptr()), _mm256_set1_epi32(i32::MIN));
            let low = _mm256_permutevar8x32_ps(levels, sizes);
            let high = _mm256_permutevar8x32_ps(levels, _mm256_srli_epi32::<2>(sizes));
            let low_sign = _mm256_and_si256(_mm256_slli_epi32::<1>(signs), sign);
            let high_sign = _mm256_and_si256(signs, sign);
            [
                F32s(_mm256_xor_ps(low, _mm256_castsi256_ps(low_sign))),
                F32s(_mm256_xor_ps(high, _mm256_castsi256_ps(high_sign))),
            ]
        }
        /// The same for the codes of a group from `first` on: bit `i` of `signs`, which has 16, and two bits
        /// of `magnitudes` from `2 * i` on.
        pub(crate) fn group_from_planes(
            levels: &[f32; 16],
            magnitudes: u32,
            signs: u32,
            first: usize
        ) -> F32s {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let lanes = _mm256_add_epi32(lanes, _mm256_set1_epi32(first as i32));
            let sizes = _mm256_set1_epi32(magnitudes as i32);
            let sizes = _mm256_srlv_epi32(sizes, _mm256_slli_epi32::<1>(lanes));
            let sizes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels.as_ptr()), sizes);
            let top = _mm256_sub_epi32(_mm256_set1_epi32(31), lanes);
            let signs = _mm256_sllv_epi32(_mm256_set1_epi32(signs as i32), top);
            let signs = _mm256_and_si256(signs, _mm256_set1_epi32(i32::MIN));
            F32s(_mm256_xor_ps(sizes, _mm256_castsi256_ps(signs)))
        }
        pub(super) fn plus(self, other: F32s) -> F32s { F32s(_mm256_add_ps(self.0, other.0)) }
        pub(super) fn minus(self, other: F32s) -> F32s { F32s(_mm256_sub_ps(self.0, other.0)) }
        pub(super) fn times(self, other: F32s) -> F32s { F32s(_mm256_mul_ps(self.0, other.0)) }
        pub(super) fn over(self, other: F32s) -> F32s { F32s(_mm256_div_ps(self.0, other.0)) }
        /// `self * by + plus`, rounded once.
        pub(crate) fn mul_add(self, by: F32s, plus: F32s) -> F32s {
            F32s(_mm256_fmadd_ps(self.0, by.0, plus.0))
        }
        /// The larger; `other` where either is NaN.
        pub(crate) fn max(self, other: F32s) -> F32s { F32s(_mm256_max_ps(self.0, other.0)) }
        /// The smaller; `other` where either is NaN.
        pub(crate) fn min(self, other: F32s) -> F32s { F32s(_mm256_min_ps(self.0, other.0)) }
        /// `yes` in lanes below `limit`, `no` in the others and where either is NaN.
        pub(crate) fn select_below(self, limit: F32s, yes: F32s, no: F32s) -> F32s {
            F32s(_mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0)))
        }
        /// To the nearest whole number, ties to even.
        pub(crate) fn round(self) -> F32s {
            F32s(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
        }
    }

    /// `self * 2^n` for integers `n` within ±160. Two factors reach results below the normal range; those are
    /// rounded twice.
    #[inline(always)]
    pub(crate) fn scale_by_power(self, n: F32s) -> F32s {
        // SAFETY: as in `intrinsics`.
        F32s(unsafe {
            let n = _mm256_cvtps_epi32(n.0);
            let half = _mm256_srai_epi32::<1>(n);
            let power = |n: __m256i| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
            };
            _mm256_mul_ps(_mm256_mul_ps(self.0, power(half)), power(_mm256_sub_epi32(n, half)))
        })
    }

    /// Sum of the lanes.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        let mut x = self.to_array();
        for width in [4, 2, 1] {
            for i in 0..width {
                x[i] += x[i + width];
            }
        }
        x[0]
    }

    /// Largest lane; no lane may be NaN.
    #[inline(always)]
    pub(crate) fn largest(self) -> f32 {
        let mut x = self.to_array();
        for width in [4, 2, 1] {
            for i in 0..width {
                x[i] = x[i].max(x[i + width]);
            }
        }
        x[0]
    }
}

impl I32s {
    intrinsics! {
        pub(crate) fn zero() -> I32s { I32s(_mm256_setzero_si256()) }
        pub(crate) fn splat(x: i32) -> I32s { I32s(_mm256_set1_epi32(x)) }
        pub(crate) fn to_f32(self) -> F32s { F32s(_mm256_cvtepi32_ps(self.0)) }
    }

    /// Adds, in each lane, the products of four codes in 0..=63 with the four i8 of `x`.
    #[inline(always)]
    pub(crate) fn dot_nibbles(self, codes: U8s, x: i32) -> I32s {
        // Pairs stay within ±2 * 63 * 127, far from the saturation of maddubs.
        // SAFETY: as in `intrinsics`.
        I32s(unsafe {
            let pairs = _mm256_maddubs_epi16(codes.0, _mm256_set1_epi32(x));
            _mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }

    /// The initial value of sums of [`I32s::dot_biased`]; signed products need no correction.
    #[inline(always)]
    pub(crate) fn biased(_: i32) -> I32s {
        I32s::zero()
    }

    /// Adds, in each lane, the products of four signed weights (stored plus 128) with the four i8 of `x`. The
    /// sum must start from [`I32s::biased`].
    #[inline(always)]
    pub(crate) fn dot_biased(self, weights: U8s, x: i32) -> I32s {
        // |w| * (x with w's sign): pairs stay within ±2 * 128 * 127 = ±32512, so maddubs does not saturate.
        // SAFETY: as in `intrinsics`.
        I32s(unsafe {
            let w = _mm256_xor_si256(weights.0, _mm256_set1_epi8(-128));
            let x = _mm256_sign_epi8(_mm256_set1_epi32(x), w);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
            _mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
}

impl U8s {
    intrinsics! {
        pub(crate) fn load(x: &[u8; 4 * LANES]) -> U8s { U8s(_mm256_loadu_si256(x.as_ptr().cast())) }
        /// The low nibble of each byte.
        pub(crate) fn low(self) -> U8s { U8s(_mm256_and_si256(self.0, _mm256_set1_epi8(15))) }
        /// The high nibble of each byte.
        pub(crate) fn high(self) -> U8s {
            U8s(_mm256_and_si256(_mm256_srli_epi16::<4>(self.0), _mm256_set1_epi8(15)))
        }
        /// Codes with further bits from bit `to` on: those of the words `of`, shifted right, under a mask
        /// that is the same in each byte.
        pub(crate) fn with_bits(self, of: U8s, shift: i32, mask: i32, to: i32) -> U8s {
            let bits = _mm256_srl_epi32(of.0, _mm_cvtsi32_si128(shift));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi32(mask));
            U8s(_mm256_or_si256(self.0, _mm256_sll_epi32(bits, _mm_cvtsi32_si128(to))))
        }
        /// The bytes of a table that codes below 16 stand for.
        pub(crate) fn levels(self, table: &[u8; 16]) -> U8s {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            U8s(_mm256_shuffle_epi8(table, self.0))
        }
    }
}

/// `round_ties_even(x * by)` as i8 (NaN is 0), and the sum of the results. Products lie within ±127.5.
#[inline(always)]
pub(crate) fn quantise(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> i32 {
    // SAFETY: as in `intrinsics`.
    unsafe {
        let by = _mm256_set1_ps(by);
        let whole = |quarter: usize| {
            let scaled = _mm256_mul_ps(_mm256_loadu_ps(x[8 * quarter..8 * quarter + 8].as_ptr()), by);
            let number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(scaled, scaled));
            _mm256_and_si256(number, _mm256_cvtps_epi32(scaled))
        };
        let (a, b, c, d) = (whole(0), whole(1), whole(2), whole(3));
        // Packing works on 128-bit halves; the permutation restores the order of groups of four.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
        let sum = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
        let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
        _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum)))
    }
}

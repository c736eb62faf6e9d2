//! AVX-512 F, BW and VL; byte products with VNNI where the target has it.

use std::arch::x86_64::*;

/// f32 elements of a vector.
pub(crate) const LANES: usize = 16;
/// Tokens that share one unpacking of a weight block.
pub(crate) const MAX_TOKENS: usize = 12;
/// Query rows of an attention tile.
pub(crate) const QUERY_ROWS: usize = 6;

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct F32s(__m512);

/// Sixteen i32.
#[derive(Clone, Copy)]
pub struct I32s(__m512i);

/// Sixteen groups of four bytes.
#[derive(Clone, Copy)]
pub struct U8s(__m512i);

impl F32s {
    intrinsics! {
        pub(crate) fn splat(x: f32) -> F32s { F32s(_mm512_set1_ps(x)) }
        pub(crate) fn load(x: &[f32; LANES]) -> F32s { F32s(_mm512_loadu_ps(x.as_ptr())) }
        pub(crate) fn store(self, out: &mut [f32; LANES]) { _mm512_storeu_ps(out.as_mut_ptr(), self.0) }
        /// From f16 bits.
        pub(crate) fn from_f16(x: &[u16; LANES]) -> F32s {
            F32s(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
        }
        /// From bf16 bits.
        pub(crate) fn from_bf16(x: &[u16; LANES]) -> F32s {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            F32s(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
        /// From E4M3, divided by 256.
        pub(crate) fn from_e4m3(x: &[u8; LANES]) -> F32s {
            // With its sign extended, a code needs its exponent's highest bit cleared to be f16.
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(x.as_ptr().cast())));
            F32s(_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16 as i16))))
        }
        /// From bytes.
        pub(crate) fn from_u8(x: &[u8; LANES]) -> F32s {
            F32s(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
        }
        /// `levels[code]` for the low four bits of each byte, then for the high ones; the upper half of
        /// `levels` is the lower one negated.
        pub(crate) fn pair_from_levels(levels: &[f32; 16], codes: &[u8; LANES]) -> [F32s; 2] {
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
            let levels = _mm512_loadu_ps(levels.as_ptr());
            let high = _mm512_srli_epi32::<4>(codes);
            [F32s(_mm512_permutexvar_ps(codes, levels)), F32s(_mm512_permutexvar_ps(high, levels))]
        }
        /// `levels[code]` for the 16 codes of a group from `first` on, which is 0: code `i` is four bits of
        /// word `i % 2`, from `i / 2 * 4` on.
        pub(crate) fn group_from_levels(levels: &[f32; 16], words: &[u8; 8], _: usize) -> F32s {
            let shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
            let codes = _mm512_srlv_epi32(_mm512_set1_epi64(i64::from_le_bytes(*words)), shifts);
            F32s(_mm512_permutexvar_ps(codes, _mm512_loadu_ps(levels.as_ptr())))
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
            let sizes = _mm512_cvtepu8_epi32(_mm_loadu_si128(magnitudes.as_ptr().cast()));
            let signs = _mm512_cvtepu8_epi32(_mm_loadu_si128(signs.as_ptr().cast()));
            let sizes = _mm512_srl_epi32(sizes, _mm_cvtsi32_si128(2 * (d as i32 % 4)));
            let signs = _mm512_srl_epi32(_mm512_slli_epi32::<3>(signs), _mm_cvtsi32_si128(d as i32));
            let next = [_mm512_srli_epi32::<2>(sizes), _mm512_srli_epi32::<1>(signs)];
            let (three, levels) = (_mm512_set1_epi32(3), _mm512_loadu_ps(levels.as_ptr()));
            // The second where the first has ones, else the third.
            let low = _mm512_ternarylogic_epi32::<0xca>(three, sizes, signs);
            let high = _mm512_ternarylogic_epi32::<0xca>(three, next[0], next[1]);
            [F32s(_mm512_permutexvar_ps(low, levels)), F32s(_mm512_permutexvar_ps(high, levels))]
        }
        /// The same for the 16 codes of a group from `first` on, which is 0: bit `i` of `signs`, which has
        /// 16, and two bits of `magnitudes` from `2 * i` on.
        pub(crate) fn group_from_planes(levels: &[f32; 16], magnitudes: u32, signs: u32, _: usize) -> F32s {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let sizes = _mm512_set1_epi32(magnitudes as i32);
            let sizes = _mm512_srlv_epi32(sizes, _mm512_slli_epi32::<1>(lanes));
            let signs = _mm512_srlv_epi32(_mm512_set1_epi32((signs << 3) as i32), lanes);
            let codes = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(3), sizes, signs);
            F32s(_mm512_permutexvar_ps(codes, _mm512_loadu_ps(levels.as_ptr())))
        }
        pub(super) fn plus(self, other: F32s) -> F32s { F32s(_mm512_add_ps(self.0, other.0)) }
        pub(super) fn minus(self, other: F32s) -> F32s { F32s(_mm512_sub_ps(self.0, other.0)) }
        pub(super) fn times(self, other: F32s) -> F32s { F32s(_mm512_mul_ps(self.0, other.0)) }
        pub(super) fn over(self, other: F32s) -> F32s { F32s(_mm512_div_ps(self.0, other.0)) }
        /// `self * by + plus`, rounded once.
        pub(crate) fn mul_add(self, by: F32s, plus: F32s) -> F32s {
            F32s(_mm512_fmadd_ps(self.0, by.0, plus.0))
        }
        /// The larger; `other` where either is NaN.
        pub(crate) fn max(self, other: F32s) -> F32s { F32s(_mm512_max_ps(self.0, other.0)) }
        /// The smaller; `other` where either is NaN.
        pub(crate) fn min(self, other: F32s) -> F32s { F32s(_mm512_min_ps(self.0, other.0)) }
        /// `yes` in lanes below `limit`, `no` in the others and where either is NaN.
        pub(crate) fn select_below(self, limit: F32s, yes: F32s, no: F32s) -> F32s {
            F32s(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0), no.0, yes.0))
        }
        /// To the nearest whole number, ties to even.
        pub(crate) fn round(self) -> F32s {
            F32s(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
        }
    }

    /// `self * 2^n` for integers `n` within ±160, rounded once.
    #[inline(always)]
    pub(crate) fn scale_by_power(self, n: F32s) -> F32s {
        // SAFETY: as in `intrinsics`.
        F32s(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }

    /// Sum of the lanes.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        // SAFETY: as in `intrinsics`.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    /// Largest lane; no lane may be NaN.
    #[inline(always)]
    pub(crate) fn largest(self) -> f32 {
        // SAFETY: as in `intrinsics`.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}

impl I32s {
    intrinsics! {
        pub(crate) fn zero() -> I32s { I32s(_mm512_setzero_si512()) }
        pub(crate) fn splat(x: i32) -> I32s { I32s(_mm512_set1_epi32(x)) }
        pub(crate) fn to_f32(self) -> F32s { F32s(_mm512_cvtepi32_ps(self.0)) }
    }

    /// Adds, in each lane, the products of four codes in 0..=63 with the four i8 of `x`.
    #[inline(always)]
    #[cfg(target_feature = "avx512vnni")]
    pub(crate) fn dot_nibbles(self, codes: U8s, x: i32) -> I32s {
        // SAFETY: as in `intrinsics`.
        I32s(unsafe { _mm512_dpbusd_epi32(self.0, codes.0, _mm512_set1_epi32(x)) })
    }

    /// Adds, in each lane, the products of four codes in 0..=63 with the four i8 of `x`.
    #[inline(always)]
    #[cfg(not(target_feature = "avx512vnni"))]
    pub(crate) fn dot_nibbles(self, codes: U8s, x: i32) -> I32s {
        // Pairs stay within ±2 * 63 * 127, far from the saturation of maddubs.
        // SAFETY: as in `intrinsics`.
        I32s(unsafe {
            let pairs = _mm512_maddubs_epi16(codes.0, _mm512_set1_epi32(x));
            _mm512_add_epi32(self.0, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        })
    }

    /// The initial value of sums of [`I32s::dot_biased`]; `bias` is -128 times the sum of the activations.
    #[inline(always)]
    #[cfg(target_feature = "avx512vnni")]
    pub(crate) fn biased(bias: i32) -> I32s {
        // SAFETY: as in `intrinsics`.
        I32s(unsafe { _mm512_set1_epi32(bias) })
    }

    /// The initial value of sums of [`I32s::dot_biased`]; signed products need no correction.
    #[inline(always)]
    #[cfg(not(target_feature = "avx512vnni"))]
    pub(crate) fn biased(_: i32) -> I32s {
        I32s::zero()
    }

    /// Adds, in each lane, the products of four signed weights (stored plus 128) with the four i8 of `x`. The
    /// sum must start from [`I32s::biased`].
    #[inline(always)]
    #[cfg(target_feature = "avx512vnni")]
    pub(crate) fn dot_biased(self, weights: U8s, x: i32) -> I32s {
        self.dot_nibbles(weights, x)
    }

    /// Adds, in each lane, the products of four signed weights (stored plus 128) with the four i8 of `x`. The
    /// sum must start from [`I32s::biased`].
    #[inline(always)]
    #[cfg(not(target_feature = "avx512vnni"))]
    pub(crate) fn dot_biased(self, weights: U8s, x: i32) -> I32s {
        // |w| * (x with w's sign): pairs stay within ±2 * 128 * 127 = ±32512, so maddubs does not saturate.
        // SAFETY: as in `intrinsics`.
        I32s(unsafe {
            let w = _mm512_xor_si512(weights.0, _mm512_set1_epi8(-128));
            let x = _mm512_set1_epi32(x);
            let x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
            let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), x);
            _mm512_add_epi32(self.0, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        })
    }
}

impl U8s {
    intrinsics! {
        pub(crate) fn load(x: &[u8; 4 * LANES]) -> U8s { U8s(_mm512_loadu_si512(x.as_ptr().cast())) }
        /// The low nibble of each byte.
        pub(crate) fn low(self) -> U8s { U8s(_mm512_and_si512(self.0, _mm512_set1_epi8(15))) }
        /// The high nibble of each byte.
        pub(crate) fn high(self) -> U8s {
            U8s(_mm512_and_si512(_mm512_srli_epi16::<4>(self.0), _mm512_set1_epi8(15)))
        }
        /// Codes with further bits from bit `to` on: those of the words `of`, shifted right, under a mask
        /// that is the same in each byte.
        pub(crate) fn with_bits(self, of: U8s, shift: i32, mask: i32, to: i32) -> U8s {
            let bits = _mm512_srl_epi32(of.0, _mm_cvtsi32_si128(shift));
            let bits = _mm512_and_si512(bits, _mm512_set1_epi32(mask));
            U8s(_mm512_or_si512(self.0, _mm512_sll_epi32(bits, _mm_cvtsi32_si128(to))))
        }
        /// The bytes of a table that codes below 16 stand for.
        pub(crate) fn levels(self, table: &[u8; 16]) -> U8s {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            U8s(_mm512_shuffle_epi8(table, self.0))
        }
    }
}

/// `round_ties_even(x * by)` as i8 (NaN is 0), and the sum of the results. Products lie within ±127.5.
#[inline(always)]
pub(crate) fn quantise(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> i32 {
    // SAFETY: as in `intrinsics`.
    unsafe {
        let by = _mm512_set1_ps(by);
        let whole = |half: usize| {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(x[16 * half..].as_ptr()), by);
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scaled, scaled);
            _mm512_maskz_cvtps_epi32(number, scaled)
        };
        let (low, high) = (whole(0), whole(1));
        _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(low));
        _mm_storeu_si128(out[16..].as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(high));
        _mm512_reduce_add_epi32(_mm512_add_epi32(low, high))
    }
}

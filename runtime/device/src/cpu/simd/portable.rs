//! Plain loops over four lanes, which compilers turn into 128-bit vectors where the target has them.

use half::{bf16, f16};

/// f32 elements of a vector.
pub(crate) const LANES: usize = 4;
/// Tokens that share one unpacking of a weight block.
pub(crate) const MAX_TOKENS: usize = 4;
/// Query rows of an attention tile.
pub(crate) const QUERY_ROWS: usize = 3;

/// Four f32.
#[derive(Clone, Copy)]
pub struct F32s([f32; LANES]);

/// Four i32.
#[derive(Clone, Copy)]
pub struct I32s([i32; LANES]);

/// Four groups of four bytes.
#[derive(Clone, Copy)]
pub struct U8s([u8; 4 * LANES]);

impl F32s {
    #[inline(always)]
    fn zip(self, other: F32s, f: impl Fn(f32, f32) -> f32) -> F32s {
        F32s(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    pub(crate) fn splat(x: f32) -> F32s {
        F32s([x; LANES])
    }

    #[inline(always)]
    pub(crate) fn load(x: &[f32; LANES]) -> F32s {
        F32s(*x)
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [f32; LANES]) {
        *out = self.0;
    }

    /// From f16 bits.
    #[inline(always)]
    pub(crate) fn from_f16(x: &[u16; LANES]) -> F32s {
        F32s(x.map(|bits| f16::from_bits(bits).to_f32()))
    }

    /// From bf16 bits.
    #[inline(always)]
    pub(crate) fn from_bf16(x: &[u16; LANES]) -> F32s {
        F32s(x.map(|bits| bf16::from_bits(bits).to_f32()))
    }

    /// From E4M3, divided by 256.
    #[inline(always)]
    pub(crate) fn from_e4m3(x: &[u8; LANES]) -> F32s {
        // With its sign extended, a code needs its exponent's highest bit cleared to be f16.
        F32s(x.map(|code| f16::from_bits((i16::from(code as i8) << 7) as u16 & 0xbfff).to_f32()))
    }

    /// From bytes.
    #[inline(always)]
    pub(crate) fn from_u8(x: &[u8; LANES]) -> F32s {
        F32s(x.map(f32::from))
    }

    /// `levels[code]` for the low four bits of each byte, then for the high ones; the upper half of `levels`
    /// is the lower one negated.
    #[inline(always)]
    pub(crate) fn pair_from_levels(levels: &[f32; 16], codes: &[u8; LANES]) -> [F32s; 2] {
        [0, 4].map(|shift| F32s(codes.map(|code| levels[usize::from(code >> shift & 15)])))
    }

    /// `levels[code]` for the codes of a group from `first` on: code `i` of 16 is four bits of word `i % 2`,
    /// from `i / 2 * 4` on.
    #[inline(always)]
    pub(crate) fn group_from_levels(levels: &[f32; 16], words: &[u8; 8], first: usize) -> F32s {
        let words = u64::from_le_bytes(*words) >> (2 * first);
        F32s(std::array::from_fn(|i| levels[(words >> (i % 2 * 32 + i / 2 * 4) & 15) as usize]))
    }

    /// As [`F32s::pair_from_levels`] for codes `d` (which is even) and `d + 1` of eight that share three
    /// bytes: bit `d` of `signs`, and two bits of `magnitudes` from `2 * (d % 4)` on. The lower half of
    /// `levels` repeats four of them.
    #[inline(always)]
    pub(crate) fn pair_from_planes(
        levels: &[f32; 16],
        magnitudes: &[u8; LANES],
        signs: &[u8; LANES],
        d: u32,
    ) -> [F32s; 2] {
        [d, d + 1].map(|d| {
            F32s(std::array::from_fn(|i| {
                let code = magnitudes[i] >> (d % 4 * 2) & 3 | (signs[i] >> d & 1) << 3;
                levels[usize::from(code)]
            }))
        })
    }

    /// The same for the codes of a group from `first` on: bit `i` of `signs`, which has 16, and two bits of
    /// `magnitudes` from `2 * i` on.
    #[inline(always)]
    pub(crate) fn group_from_planes(levels: &[f32; 16], magnitudes: u32, signs: u32, first: usize) -> F32s {
        F32s(std::array::from_fn(|i| {
            let at = first + i;
            levels[(magnitudes >> (2 * at) & 3 | (signs >> at & 1) << 3) as usize]
        }))
    }

    #[inline(always)]
    pub(super) fn plus(self, other: F32s) -> F32s {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    pub(super) fn minus(self, other: F32s) -> F32s {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    pub(super) fn times(self, other: F32s) -> F32s {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    pub(super) fn over(self, other: F32s) -> F32s {
        self.zip(other, |a, b| a / b)
    }

    /// `self * by + plus`, rounded once where the target can.
    #[inline(always)]
    pub(crate) fn mul_add(self, by: F32s, plus: F32s) -> F32s {
        F32s(std::array::from_fn(|i| {
            // Without the instruction, `f32::mul_add` is a slow library call.
            if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                self.0[i].mul_add(by.0[i], plus.0[i])
            } else {
                self.0[i] * by.0[i] + plus.0[i]
            }
        }))
    }

    /// The larger; `other` where either is NaN.
    #[inline(always)]
    pub(crate) fn max(self, other: F32s) -> F32s {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    /// The smaller; `other` where either is NaN.
    #[inline(always)]
    pub(crate) fn min(self, other: F32s) -> F32s {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    /// `yes` in lanes below `limit`, `no` in the others and where either is NaN.
    #[inline(always)]
    pub(crate) fn select_below(self, limit: F32s, yes: F32s, no: F32s) -> F32s {
        F32s(std::array::from_fn(|i| if self.0[i] < limit.0[i] { yes.0[i] } else { no.0[i] }))
    }

    /// To the nearest whole number, ties to even; for magnitudes below 2^22.
    #[inline(always)]
    pub(crate) fn round(self) -> F32s {
        // Adding and subtracting 1.5 * 2^23 leaves no room for a fraction.
        let big = F32s::splat(12_582_912.0);
        self.plus(big).minus(big)
    }

    /// `self * 2^n` for integers `n` within ±160. Two factors reach results below the normal range; those are
    /// rounded twice.
    #[inline(always)]
    pub(crate) fn scale_by_power(self, n: F32s) -> F32s {
        let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
        self.zip(n, |x, n| {
            let n = n as i32;
            x * power(n >> 1) * power(n - (n >> 1))
        })
    }

    /// Sum of the lanes.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        (self.0[0] + self.0[2]) + (self.0[1] + self.0[3])
    }

    /// Largest lane; no lane may be NaN.
    #[inline(always)]
    pub(crate) fn largest(self) -> f32 {
        self.0[0].max(self.0[2]).max(self.0[1].max(self.0[3]))
    }
}

impl I32s {
    #[inline(always)]
    pub(crate) fn zero() -> I32s {
        I32s([0; LANES])
    }

    #[inline(always)]
    pub(crate) fn to_f32(self) -> F32s {
        F32s(self.0.map(|x| x as f32))
    }

    /// Adds, in each lane, the products of four codes in 0..=63 with the four i8 of `x`.
    #[inline(always)]
    pub(crate) fn dot_nibbles(self, codes: U8s, x: i32) -> I32s {
        let x = x.to_le_bytes().map(|b| i32::from(b as i8));
        I32s(std::array::from_fn(|i| {
            let w = &codes.0[4 * i..4 * i + 4];
            self.0[i] + (0..4).map(|c| i32::from(w[c]) * x[c]).sum::<i32>()
        }))
    }

    #[inline(always)]
    pub(crate) fn splat(x: i32) -> I32s {
        I32s([x; LANES])
    }

    /// The initial value of sums of [`I32s::dot_biased`]; `bias` is -128 times the sum of the activations.
    #[inline(always)]
    pub(crate) fn biased(bias: i32) -> I32s {
        I32s([bias; LANES])
    }

    /// Adds, in each lane, the products of four signed weights (stored plus 128) with the four i8 of `x`. The
    /// sum must start from [`I32s::biased`].
    #[inline(always)]
    pub(crate) fn dot_biased(self, weights: U8s, x: i32) -> I32s {
        self.dot_nibbles(weights, x)
    }
}

impl U8s {
    #[inline(always)]
    pub(crate) fn load(x: &[u8; 4 * LANES]) -> U8s {
        U8s(*x)
    }

    /// The low nibble of each byte.
    #[inline(always)]
    pub(crate) fn low(self) -> U8s {
        U8s(self.0.map(|b| b & 15))
    }

    /// The high nibble of each byte.
    #[inline(always)]
    pub(crate) fn high(self) -> U8s {
        U8s(self.0.map(|b| b >> 4))
    }

    /// Codes with further bits from bit `to` on: those of the words `of`, shifted right, under a mask that is
    /// the same in each byte.
    #[inline(always)]
    pub(crate) fn with_bits(self, of: U8s, shift: i32, mask: i32, to: i32) -> U8s {
        let mask = mask as u8;
        U8s(std::array::from_fn(|i| self.0[i] | (of.0[i] >> shift & mask) << to))
    }

    /// The bytes of a table that codes below 16 stand for.
    #[inline(always)]
    pub(crate) fn levels(self, table: &[u8; 16]) -> U8s {
        U8s(self.0.map(|b| table[usize::from(b & 15)]))
    }
}

/// `round_ties_even(x * by)` as i8 (NaN is 0), and the sum of the results. Products lie within ±127.5.
#[inline(always)]
pub(crate) fn quantise(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> i32 {
    let mut sum = 0;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * by).round_ties_even() as i8;
        sum += i32::from(*out);
    }
    sum
}

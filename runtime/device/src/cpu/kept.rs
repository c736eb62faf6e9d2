//! Formats of cached keys and values, as types: how vectors of f32 are read from what a block stores.
//!
//! A lane multiplies exactly what [`monomorph_formats::cached`] reads back but for static scales: the product
//! of a level and a scale is exact, so it does not matter where it is formed. A static scale is that of all
//! keys, or values, of a head: it multiplies scores, or sums. [`super::pack`] is the other direction.

use super::format::KvElement;
use super::memory::Plain;
use super::simd::{F32s, LANES, at};
use half::bf16;
use monomorph_formats::cached::{Cached, GROUP, KvFormats};

/// Codes of E4M3 become numbers of f16 by shifts, which are so many times too small.
const E4M3_FACTOR: f32 = 256.0;

/// E4M3 by code. The two codes that are no numbers are never kept.
static E4M3: [f32; 256] = e4m3();

/// The format of cached keys, or of cached values.
pub trait KvCodes: Copy + Send + Sync + 'static {
    /// Which one it is.
    const FORMAT: Cached;
    /// What codes are read as.
    #[doc(hidden)]
    type Code: Plain;
    /// What scales of groups are read as.
    #[doc(hidden)]
    type Scale: Plain;
    /// What multiplies the codes of some keys in a group.
    #[doc(hidden)]
    type By: Copy + Default;

    /// The scales of group `group` of keys `token .. token + LANES` in a block of `tokens`.
    #[doc(hidden)]
    fn key_scales(unit: &Unit<Self>, tokens: usize, group: usize, token: usize) -> Self::By;

    /// Dimensions `d` (which is even) and `d + 1` of keys `token .. token + LANES`, whose scales are `by`.
    #[doc(hidden)]
    fn keys(unit: &Unit<Self>, tokens: usize, d: usize, token: usize, by: Self::By) -> [F32s; 2];

    /// Elements `d .. d + LANES` of the value of `token`, where values are `width` elements.
    #[doc(hidden)]
    fn values(unit: &Unit<Self>, width: usize, token: usize, d: usize) -> F32s;
}

/// How a cache keeps keys and values: one format for both, or a pair.
pub trait KvKept: Copy + Send + Sync + 'static {
    /// The format of keys.
    type Keys: KvCodes;
    /// The format of values.
    type Values: KvCodes;
    /// Keys' and values' as one.
    const FORMATS: KvFormats = KvFormats { keys: Self::Keys::FORMAT, values: Self::Values::FORMAT };
}

impl<F: KvCodes> KvKept for F {
    type Keys = F;
    type Values = F;
}

impl<K: KvCodes, V: KvCodes> KvKept for (K, V) {
    type Keys = K;
    type Values = V;
}

/// The keys of a head in a block, or its values.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a, F: KvCodes> {
    pub(super) codes: &'a [F::Code],
    pub(super) scales: &'a [F::Scale],
    /// What follows the codes of keys, if anything does.
    pub(super) tails: &'a [bf16],
}

impl<'a, F: KvCodes> Unit<'a, F> {
    /// Of no token.
    pub(super) const NONE: Unit<'static, F> = Unit { codes: &[], scales: &[], tails: &[] };

    /// The unit in these bytes, of which so many are codes, and in those of tails.
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], codes: usize, tails: &'a [u8]) -> Unit<'a, F> {
        let (codes, scales) = bytes.split_at(codes);
        Unit { codes: typed(codes), scales: typed(scales), tails: typed(tails) }
    }

    /// Keys from the one at `slot` on, which becomes the first.
    #[inline(always)]
    pub(super) fn keys_from(self, slot: usize) -> Unit<'a, F> {
        let scales = self.scales.get(slot..).unwrap_or_default();
        Unit { codes: &self.codes[slot..], scales, tails: self.tails.get(slot..).unwrap_or_default() }
    }

    /// Element `d` of the tails of keys `token .. token + LANES` in a block of `tokens`.
    #[inline(always)]
    pub(super) fn tails(&self, tokens: usize, d: usize, token: usize) -> F32s {
        F32s::from_bf16(&at::<_, LANES>(self.tails, d * tokens + token).map(bf16::to_bits))
    }

    /// Values of `width` elements from the one at `slot` on, which becomes the first.
    #[inline(always)]
    pub(super) fn values_from(self, slot: usize, width: usize) -> Unit<'a, F> {
        let codes = slot * width * F::FORMAT.code_bits() / (8 * size_of::<F::Code>());
        let scales = self.scales.get(slot * (width / GROUP)..).unwrap_or_default();
        Unit { codes: &self.codes[codes..], scales, tails: &[] }
    }
}

/// Bytes as numbers.
#[inline(always)]
fn typed<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: every bit pattern is a valid plain number; the assertion checks that the middle covers
    // everything.
    let (before, numbers, after) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty() && after.is_empty(), "parts of a block are aligned as their numbers are");
    numbers
}

impl<E: KvElement> KvCodes for E {
    const FORMAT: Cached = E::FORMAT;
    type Code = E;
    type Scale = u8;
    type By = ();

    #[inline(always)]
    fn key_scales(_: &Unit<E>, _: usize, _: usize, _: usize) {}

    #[inline(always)]
    fn keys(unit: &Unit<E>, tokens: usize, d: usize, token: usize, (): ()) -> [F32s; 2] {
        let from = d * tokens + token;
        [E::widen(at::<_, LANES>(unit.codes, from)), E::widen(at::<_, LANES>(unit.codes, from + tokens))]
    }

    #[inline(always)]
    fn values(unit: &Unit<E>, width: usize, token: usize, d: usize) -> F32s {
        E::widen(at::<_, LANES>(unit.codes, token * width + d))
    }
}

/// [`Cached::Fp8`].
#[derive(Clone, Copy, Debug)]
pub struct Fp8;

impl KvCodes for Fp8 {
    const FORMAT: Cached = Cached::Fp8;
    type Code = u8;
    type Scale = u8;
    type By = ();

    #[inline(always)]
    fn key_scales(_: &Unit<Fp8>, _: usize, _: usize, _: usize) {}

    #[inline(always)]
    fn keys(unit: &Unit<Fp8>, tokens: usize, d: usize, token: usize, (): ()) -> [F32s; 2] {
        e4m3_pair(unit.codes, tokens, d, token, F32s::splat(E4M3_FACTOR))
    }

    #[inline(always)]
    fn values(unit: &Unit<Fp8>, width: usize, token: usize, d: usize) -> F32s {
        F32s::from_e4m3(at(unit.codes, token * width + d)) * F32s::splat(E4M3_FACTOR)
    }
}

/// [`Cached::Turbo8`].
#[derive(Clone, Copy, Debug)]
pub struct Turbo8;

impl KvCodes for Turbo8 {
    const FORMAT: Cached = Cached::Turbo8;
    type Code = u8;
    type Scale = bf16;
    type By = F32s;

    #[inline(always)]
    fn key_scales(unit: &Unit<Turbo8>, tokens: usize, group: usize, token: usize) -> F32s {
        let bits: [u16; LANES] = at::<_, LANES>(unit.scales, group * tokens + token).map(bf16::to_bits);
        F32s::from_bf16(&bits) * F32s::splat(E4M3_FACTOR)
    }

    #[inline(always)]
    fn keys(unit: &Unit<Turbo8>, tokens: usize, d: usize, token: usize, by: F32s) -> [F32s; 2] {
        e4m3_pair(unit.codes, tokens, d, token, by)
    }

    #[inline(always)]
    fn values(unit: &Unit<Turbo8>, width: usize, token: usize, d: usize) -> F32s {
        let scale = unit.scales[token * (width / GROUP) + d / GROUP];
        let by = F32s::splat(f32::from_bits(u32::from(scale.to_bits()) << 16) * E4M3_FACTOR);
        F32s::from_e4m3(at(unit.codes, token * width + d)) * by
    }
}

/// Two dimensions of keys whose codes are E4M3.
#[inline(always)]
fn e4m3_pair(codes: &[u8], tokens: usize, d: usize, token: usize, by: F32s) -> [F32s; 2] {
    let from = d * tokens + token;
    [F32s::from_e4m3(at(codes, from)) * by, F32s::from_e4m3(at(codes, from + tokens)) * by]
}

/// The scales of a group of keys, where they are E4M3.
#[inline(always)]
fn e4m3_scales(scales: &[u8], tokens: usize, group: usize, token: usize) -> F32s {
    F32s::from_e4m3(at(scales, group * tokens + token)) * F32s::splat(E4M3_FACTOR)
}

/// The scale of a group of a value.
#[inline(always)]
fn e4m3_scale(scales: &[u8], width: usize, token: usize, d: usize) -> F32s {
    F32s::splat(E4M3[usize::from(scales[token * (width / GROUP) + d / GROUP])])
}

/// Formats of 16 codes: two dimensions of a key in a byte, the lower one in the lower bits; a group of a
/// value in two words, elements in turn, so that a shift by lane brings each to the low bits of its own.
macro_rules! nibbles {
    ($($name:ident),*) => {$(
        #[doc = concat!("[`Cached::", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl KvCodes for $name {
            const FORMAT: Cached = Cached::$name;
            type Code = u8;
            type Scale = u8;
            type By = F32s;

            #[inline(always)]
            fn key_scales(unit: &Unit<$name>, tokens: usize, group: usize, token: usize) -> F32s {
                e4m3_scales(unit.scales, tokens, group, token)
            }

            #[inline(always)]
            fn keys(unit: &Unit<$name>, tokens: usize, d: usize, token: usize, by: F32s) -> [F32s; 2] {
                const LEVELS: [f32; 16] = Cached::$name.signed_levels();
                let [low, high] = F32s::pair_from_levels(&LEVELS, at(unit.codes, d / 2 * tokens + token));
                [low * by, high * by]
            }

            #[inline(always)]
            fn values(unit: &Unit<$name>, width: usize, token: usize, d: usize) -> F32s {
                const LEVELS: [f32; 16] = Cached::$name.signed_levels();
                let words = at(unit.codes, (token * width + d / GROUP * GROUP) / 2);
                F32s::group_from_levels(&LEVELS, words, d % GROUP) * e4m3_scale(unit.scales, width, token, d)
            }
        }
    )*};
}

nibbles!(Nvfp4, Turbo4);

/// [`Cached::Turbo3`]: eight dimensions of a key in three bytes, each of another plane: magnitudes of the
/// first four, of the others, and signs. A group of a value is a word of magnitudes and half a word of signs.
#[derive(Clone, Copy, Debug)]
pub struct Turbo3;

impl Turbo3 {
    const LEVELS: [f32; 16] = Cached::Turbo3.signed_levels();
}

impl KvCodes for Turbo3 {
    const FORMAT: Cached = Cached::Turbo3;
    type Code = u8;
    type Scale = u8;
    type By = F32s;

    #[inline(always)]
    fn key_scales(unit: &Unit<Turbo3>, tokens: usize, group: usize, token: usize) -> F32s {
        e4m3_scales(unit.scales, tokens, group, token)
    }

    #[inline(always)]
    fn keys(unit: &Unit<Turbo3>, tokens: usize, d: usize, token: usize, by: F32s) -> [F32s; 2] {
        let plane = |plane: usize| -> &[u8; LANES] { at(unit.codes, (d / 8 * 3 + plane) * tokens + token) };
        let [even, odd] = F32s::pair_from_planes(&Turbo3::LEVELS, plane(d % 8 / 4), plane(2), d as u32 % 8);
        [even * by, odd * by]
    }

    #[inline(always)]
    fn values(unit: &Unit<Turbo3>, width: usize, token: usize, d: usize) -> F32s {
        let bytes: &[u8; 6] = at(unit.codes, (token * width + d / GROUP * GROUP) * 3 / 8);
        let magnitudes = u32::from_le_bytes(*at(bytes, 0));
        let signs = u32::from(u16::from_le_bytes(*at(bytes, 4)));
        let value = F32s::group_from_planes(&Turbo3::LEVELS, magnitudes, signs, d % GROUP);
        value * e4m3_scale(unit.scales, width, token, d)
    }
}

const fn e4m3() -> [f32; 256] {
    let (mut table, mut code) = ([0.0; 256], 0u32);
    while code < 256 {
        let (exponent, mantissa) = (code >> 3 & 15, code & 7);
        let size = match exponent {
            0 => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
        };
        table[code as usize] = if code < 128 { size } else { -size };
        code += 1;
    }
    table
}

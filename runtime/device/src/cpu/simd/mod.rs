//! Vectors of the instruction set that the crate is compiled for.
//!
//! Each backend exports the same names: [`LANES`], [`F32s`] (that many f32), [`I32s`] and [`U8s`] (four bytes
//! per lane) and [`quantise`]. `cfg(target_feature)` chooses the backend when the crate is compiled. Kernels
//! work on tiles of [`TILE`] rows, in `TILE / LANES` parts.

/// Methods of a backend that are intrinsics, inlined everywhere.
#[allow(unused_macros, reason = "the portable backend has no intrinsics")]
macro_rules! intrinsics {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($argument:tt)*) $(-> $result:ty)? { $($body:tt)* })*) => {
        $($(#[$doc])*
        #[inline(always)]
        $vis fn $name($($argument)*) $(-> $result)? {
            // SAFETY: a backend is compiled only when the target has the instruction sets that its intrinsics
            // need, and loads and stores go through references to arrays of exactly the vector's size.
            unsafe { $($body)* }
        })*
    };
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx512bw", target_feature = "avx512vl"))]
mod avx512;
#[cfg(all(target_arch = "x86_64", target_feature = "avx512bw", target_feature = "avx512vl"))]
pub(crate) use avx512::*;

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "fma",
    target_feature = "f16c",
    not(all(target_feature = "avx512bw", target_feature = "avx512vl"))
))]
mod avx2;
#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "fma",
    target_feature = "f16c",
    not(all(target_feature = "avx512bw", target_feature = "avx512vl"))
))]
pub(crate) use avx2::*;

#[cfg(not(all(
    target_arch = "x86_64",
    any(
        all(target_feature = "avx512bw", target_feature = "avx512vl"),
        all(target_feature = "avx2", target_feature = "fma", target_feature = "f16c")
    )
)))]
mod portable;
#[cfg(not(all(
    target_arch = "x86_64",
    any(
        all(target_feature = "avx512bw", target_feature = "avx512vl"),
        all(target_feature = "avx2", target_feature = "fma", target_feature = "f16c")
    )
)))]
pub(crate) use portable::*;

mod functions;
pub(crate) use functions::{erf, exp, sigmoid, softplus};

#[cfg(test)]
mod tests;

/// Rows of a weight tile; activation rows are padded to a multiple of it.
pub(crate) const TILE: usize = monomorph_abi::VECTOR;

/// Vectors that make up a tile.
pub(crate) const PARTS: usize = TILE / LANES;

/// `N` elements of `slice` from `at` on. With a constant `at` in a slice of known length, the compiler
/// removes the check.
#[inline(always)]
pub(crate) fn at<T, const N: usize>(slice: &[T], at: usize) -> &[T; N] {
    slice[at..at + N].first_chunk().expect("N elements were cut out")
}

/// Bytes that weights are asked for ahead of their products: two pages of 4 KiB, since what a processor
/// fetches ahead by itself ends with a page.
const AHEAD: usize = 8192;

/// Asks for the weights that stand [`AHEAD`] of this block, which may be beyond the end of all. Parts of a
/// block share their lines. Products of a dozen tokens, too, wait for their weights; groups of tokens that
/// find them in the cache lose nothing that can be measured.
#[inline(always)]
pub(crate) fn ask_ahead(block: &[u8], part: usize) {
    if part > 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    for line in (0..block.len()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing for the program and faults nowhere, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// Like [`at`], mutably.
#[inline(always)]
pub(crate) fn at_mut<T, const N: usize>(slice: &mut [T], at: usize) -> &mut [T; N] {
    slice[at..at + N].first_chunk_mut().expect("N elements were cut out")
}

/// Little-endian 16-bit values.
#[inline(always)]
pub(crate) fn halves(bytes: &[u8; 2 * LANES]) -> [u16; LANES] {
    std::array::from_fn(|i| u16::from_le_bytes(*at(bytes, 2 * i)))
}

/// Little-endian f32 values.
#[inline(always)]
pub(crate) fn words(bytes: &[u8; 4 * LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| f32::from_le_bytes(*at(bytes, 4 * i)))
}

/// `for $i in 0..$count` for a constant count of at most 12, written out. Sums indexed by `$i` stay in
/// registers only if the index is constant, and compilers do not unroll bodies of this size.
macro_rules! unrolled {
    ($i:ident < $count:expr, $body:block) => {
        $crate::cpu::simd::unrolled!(@ $i, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $i:ident, $count:expr, $body:block, $($n:literal)*) => {
        const { assert!($count <= 12) };
        $(if $n < $count {
            let $i = $n;
            $body
        })*
    };
}
pub(crate) use unrolled;

/// Lane-wise operators from the backend's methods.
macro_rules! operators {
    ($($trait:ident $method:ident $with:ident),*) => {
        $(impl std::ops::$trait for F32s {
            type Output = F32s;
            #[inline(always)]
            fn $method(self, other: F32s) -> F32s {
                self.$with(other)
            }
        })*
    };
}
operators!(Add add plus, Sub sub minus, Mul mul times, Div div over);

impl Default for F32s {
    #[inline(always)]
    fn default() -> F32s {
        F32s::zero()
    }
}

impl F32s {
    /// Zero in every lane.
    #[inline(always)]
    pub(crate) fn zero() -> F32s {
        F32s::splat(0.0)
    }

    /// The first `count` lanes, `fill` in the others.
    #[inline(always)]
    pub(crate) fn keep(self, count: usize, fill: f32) -> F32s {
        let mut lanes = self.to_array();
        for (i, lane) in lanes.iter_mut().enumerate() {
            if i >= count {
                *lane = fill;
            }
        }
        F32s::load(&lanes)
    }

    /// The lanes as an array.
    #[inline(always)]
    pub(crate) fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }
}

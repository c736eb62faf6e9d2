//! The memory layout of a block's keys and values in one layer.
//!
//! The keys of a head, and its values, are a unit each: a plane of codes, and behind it a plane of scales if
//! the format has some. On a CUDA device units are `[keys, values][heads]`, codes `[tokens][head_dim]` and
//! scales `[tokens][groups]` (templates/cuda/attention/attention.cuh). On a CPU units are
//! `[heads][keys, values]`; keys are transposed, codes `[head_dim][tokens]` and scales `[groups][tokens]`, so
//! that a vector is one dimension of several keys, and values are `[tokens][head_dim, in whole vectors]`.
//!
//! Formats with scales have a row of codes, or of scales, on a CUDA device in the order in which its kernels
//! read them (templates/cuda/attention/grouped.cuh). What these know of levels and of the rotation is printed
//! from here ([`header`]).
//!
//! Static scales belong to a layer and not to a block. On a CUDA device they are f32 `[keys, values][heads]`,
//! which end where the layer's first block begins. In front of them are what they are set by, bits of the
//! largest magnitudes in the same order, and in front of these a word: whether something is being measured.
//!
//! Where values are the leading elements of keys, as with a latent, they are stored once: a block has no
//! values (codes `[tokens][head_dim]` on a CUDA device, `[head_dim][tokens]` on a CPU). If their format is of
//! fewer bits than bf16, what follows a latent is not in it: planes of codes and scales are those of latents,
//! and behind them is a plane of bf16, `[tokens][tail]` on a CUDA device and `[tail][tokens]` on a CPU.

use crate::VECTOR;
use crate::packed::ALIGNMENT;
use monomorph_formats::cached::{Cached, GROUP, KvFormats, SIGNS};
use monomorph_formats::f32_to_e4m3;

/// The layout of a block in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of K/V heads.
    pub heads: usize,
    /// Elements per key.
    pub head_dim: usize,
    /// Elements between the starts of consecutive values; 0 if values are the leading elements of keys.
    pub value_stride: usize,
    /// Trailing elements of a key that are no codes of its format but bf16, in a plane of their own.
    pub tail: usize,
    /// Tokens per block.
    pub tokens: usize,
    /// Formats of keys and values.
    pub formats: KvFormats,
}

impl Layout {
    /// The layout on a CUDA device.
    pub const fn cuda(heads: usize, head_dim: usize, tokens: usize, formats: KvFormats) -> Layout {
        Layout { heads, head_dim, value_stride: head_dim, tail: 0, tokens, formats }
    }

    /// The layout on a CPU.
    pub const fn cpu(heads: usize, head_dim: usize, tokens: usize, formats: KvFormats) -> Layout {
        let value_stride = head_dim.next_multiple_of(VECTOR);
        Layout { heads, head_dim, value_stride, tail: 0, tokens, formats }
    }

    /// The layout of latents of so many elements, each followed by the rest of its key: they are the values
    /// too, which are not stored besides.
    #[must_use]
    pub const fn of_latents(self, latent: usize) -> Layout {
        let tail = if self.formats.keys.is_narrow() { self.head_dim - latent } else { 0 };
        Layout { value_stride: 0, tail, ..self }
    }

    /// Elements of one head's keys in a block, but for their tails.
    pub const fn keys(&self) -> usize {
        self.tokens * (self.head_dim - self.tail)
    }

    /// Elements of one head's values in a block.
    pub const fn values(&self) -> usize {
        self.tokens * self.value_stride
    }

    /// Bytes of the codes of one head's keys; their scales, if any, begin here.
    pub const fn key_codes(&self) -> usize {
        self.keys() * self.formats.keys.code_bits() / 8
    }

    /// Bytes of the codes of one head's values; their scales, if any, begin here.
    pub const fn value_codes(&self) -> usize {
        self.values() * self.formats.values.code_bits() / 8
    }

    /// Bytes of the codes and scales of one head's keys; their tails, if any, begin here.
    pub const fn key_tails(&self) -> usize {
        self.key_codes() + self.scales(self.formats.keys)
    }

    /// Bytes of one head's keys, codes, scales and tails.
    pub const fn key_bytes(&self) -> usize {
        self.key_tails() + self.tokens * self.tail * size_of::<u16>()
    }

    /// Bytes of one head's values, codes and scales.
    pub const fn value_bytes(&self) -> usize {
        if self.value_stride == 0 { 0 } else { self.value_codes() + self.scales(self.formats.values) }
    }

    /// Bytes of the keys and values of a block's tokens in one layer, scales included.
    pub const fn block_bytes(&self) -> usize {
        self.heads * (self.key_bytes() + self.value_bytes())
    }

    /// Bytes of one token's keys and values without padding: the bytes that attention must move.
    pub const fn token_bytes(&self) -> usize {
        let value_stride = if self.value_stride == 0 { 0 } else { self.head_dim };
        Layout { tokens: 1, value_stride, ..*self }.block_bytes()
    }

    /// Bytes in front of the first block of a layer on a CUDA device, for static scales and what they are set
    /// by; 0 if the formats have none.
    pub const fn ahead_bytes(&self) -> usize {
        let KvFormats { keys, values } = self.formats;
        let scaled = keys.has_static_scale() || values.has_static_scale();
        if scaled {
            (size_of::<u32>() + 2 * self.static_scale_bytes()).next_multiple_of(ALIGNMENT as usize)
        } else {
            0
        }
    }

    /// Bytes of the static scales of a layer.
    pub const fn static_scale_bytes(&self) -> usize {
        2 * self.heads * size_of::<f32>()
    }

    /// Bytes of the scales of one head's keys, or of its values, in this format.
    const fn scales(&self, format: Cached) -> usize {
        match format.scales() {
            Some(scale) => self.tokens * (self.head_dim - self.tail).div_ceil(GROUP) * scale.block_bytes(),
            None => 0,
        }
    }
}

/// The text of `templates/cuda/attention/levels.cuh`.
///
/// # Panics
/// Never: these formats have levels.
pub fn header() -> String {
    let mut out = "\
// Printed from runtime/abi/src/kv.rs: `cargo xtask test --bless` does it again.
#pragma once

#include <cstdint>

namespace monomorph {
"
    .to_owned();
    for format in [Cached::Nvfp4, Cached::Turbo4, Cached::Turbo3] {
        out += &levels(format, format.magnitudes().expect("a format of levels"));
    }
    let words = SIGNS.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
    let words: Vec<String> = words.map(|word| format!("{word:#010x}u")).collect();
    let lines: String = words.chunks(4).map(|line| format!("        {},\n", line.join(", "))).collect();
    out + &format!(
        "
// Bit b of word w: whether element 32w + b of a vector changes its sign before it is rotated.
__device__ constexpr uint32_t rotation_signs(int word) {{
    constexpr uint32_t OF[] = {{
{lines}    }};
    return OF[word];
}}

}}  // namespace monomorph
"
    )
}

/// A format's levels as a struct.
fn levels(format: Cached, magnitudes: &[f32]) -> String {
    let list = |all: &mut dyn Iterator<Item = f32>| {
        let all: Vec<String> = all.map(|it| format!("{it:?}f")).collect();
        all.join(", ")
    };
    let word = |from: usize| {
        let bytes = [0, 1, 2, 3].map(|at| magnitudes.get(from + at).map_or(0, |it| f32_to_e4m3(*it)));
        u32::from_le_bytes(bytes)
    };
    let name = format.name();
    format!(
        "
// Magnitudes of {name}: as e4m3, from the lowest byte of LOW on, and what lies midway between neighbours.
struct {}{}Levels {{
    static constexpr int COUNT = {};
    static constexpr uint32_t LOW = {:#010x}u, HIGH = {:#010x}u;
    __device__ static constexpr float magnitude(int at) {{
        constexpr float OF[] = {{{}}};
        return OF[at];
    }}
    __device__ static constexpr float threshold(int at) {{
        constexpr float ABOVE[] = {{{}}};
        return ABOVE[at];
    }}
}};
",
        name[..1].to_uppercase(),
        &name[1..],
        magnitudes.len(),
        word(0),
        word(4),
        list(&mut magnitudes.iter().copied()),
        list(&mut magnitudes.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn both(format: Cached) -> KvFormats {
        KvFormats::both(format)
    }

    #[test]
    fn what_is_key_and_value_at_once_is_stored_once() {
        let cuda = Layout::cuda(1, 320, 16, both(Cached::Bf16)).of_latents(256);
        assert_eq!(
            (cuda.keys(), cuda.values(), cuda.block_bytes(), cuda.token_bytes()),
            (5120, 0, 10240, 640)
        );
        let cpu = Layout::cpu(1, 20, 16, both(Cached::F32)).of_latents(12);
        assert_eq!((cpu.keys(), cpu.values(), cpu.block_bytes(), cpu.token_bytes()), (320, 0, 1280, 80));
    }

    #[test]
    fn what_follows_a_latent_of_codes_is_bf16() {
        // 64 rotated elements of 2 bytes behind 256 codes, and scales of 16 groups.
        for (format, codes, scales) in [
            (Cached::Fp8, 256, 0),
            (Cached::Nvfp4, 128, 16),
            (Cached::Turbo8, 256, 32),
            (Cached::Turbo4, 128, 16),
            (Cached::Turbo3, 96, 16),
        ] {
            for layout in [Layout::cuda, Layout::cpu] {
                let it = layout(1, 320, 16, both(format)).of_latents(256);
                assert_eq!((it.tail, it.keys(), it.key_codes()), (64, 16 * 256, 16 * codes), "{format}");
                assert_eq!(it.key_tails(), 16 * (codes + scales), "{format}");
                assert_eq!(it.block_bytes(), 16 * (codes + scales + 128), "{format}");
                assert_eq!(it.token_bytes(), codes + scales + 128, "{format}");
            }
        }
        // Groups of latents that no 16 divides are not stored; fp8 has none.
        let odd = Layout::cpu(1, 26, 16, both(Cached::Fp8)).of_latents(20);
        assert_eq!((odd.tail, odd.key_tails(), odd.block_bytes()), (6, 320, 512));
    }

    #[test]
    fn blocks_are_codes_and_the_scales_that_they_share() {
        let bf16 = Layout::cuda(2, 64, 16, both(Cached::Bf16));
        assert_eq!((bf16.block_bytes(), bf16.key_codes(), bf16.token_bytes()), (8192, 2048, 512));
        assert_eq!(Layout::cuda(2, 64, 16, both(Cached::Fp8)).block_bytes(), 4096);
        // On a CPU, rows of values are padded, but padding is not moved.
        let padded = Layout::cpu(3, 20, 16, both(Cached::F32));
        assert_eq!((padded.keys(), padded.values()), (320, 512));
        assert_eq!((padded.block_bytes(), padded.token_bytes()), (3 * 832 * 4, 3 * 40 * 4));
        // Heads of 256 in blocks of 16: whole lines of 128 bytes.
        for (format, bytes) in [(Cached::Turbo8, 4608), (Cached::Turbo4, 2304), (Cached::Turbo3, 1792)] {
            let layout = Layout::cuda(1, 256, 16, both(format));
            assert_eq!((layout.key_bytes(), layout.value_bytes()), (bytes, bytes), "{format}");
            assert_eq!(layout.token_bytes(), 2 * bytes / 16, "{format}");
        }
        // Static scales are in front of all blocks of a layer.
        assert_eq!((bf16.ahead_bytes(), padded.ahead_bytes()), (0, 0));
        for (heads, bytes) in [(2, 256), (15, 256), (16, 512)] {
            assert_eq!(Layout::cuda(heads, 64, 16, both(Cached::Fp8)).ahead_bytes(), bytes);
        }
        // Keys and values may differ.
        let formats = KvFormats { keys: Cached::Turbo8, values: Cached::Turbo4 };
        let layout = Layout::cuda(4, 128, 16, formats);
        assert_eq!((layout.key_codes(), layout.key_bytes()), (2048, 2304));
        assert_eq!((layout.value_codes(), layout.value_bytes()), (1024, 1152));
        assert_eq!(layout.block_bytes(), 4 * (2304 + 1152));
    }
}

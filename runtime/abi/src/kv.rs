//! The memory layout of a block's keys and values in one layer.
//!
//! A block is a plane of codes, followed by a plane of scales if the format has shared scales. On a CUDA
//! device the codes are `[keys, values][heads][tokens][head_dim]` (templates/cuda/attention/attention.cuh).
//! On a CPU each head has its keys transposed, `[head_dim][tokens]`, so that a vector is one dimension of
//! several keys, followed by its values, `[tokens][head_dim, in whole vectors]`.
//!
//! Where values are the leading elements of keys, as with a latent, they are stored once: a block has no
//! plane of values (`[tokens][head_dim]` on a CUDA device, `[head_dim][tokens]` on a CPU).

use crate::{VECTOR, code_bits, scaled_run};
use monomorph_formats::Format;

/// The layout of a block in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of K/V heads.
    pub heads: usize,
    /// Elements per key.
    pub head_dim: usize,
    /// Elements between the starts of consecutive values; 0 if values are the leading elements of keys.
    pub value_stride: usize,
    /// Tokens per block.
    pub tokens: usize,
    /// Format of the elements.
    pub format: Format,
}

impl Layout {
    /// The layout on a CUDA device.
    pub const fn cuda(heads: usize, head_dim: usize, tokens: usize, format: Format) -> Layout {
        Layout { heads, head_dim, value_stride: head_dim, tokens, format }
    }

    /// The layout on a CPU.
    pub const fn cpu(heads: usize, head_dim: usize, tokens: usize, format: Format) -> Layout {
        Layout { heads, head_dim, value_stride: head_dim.next_multiple_of(VECTOR), tokens, format }
    }

    /// The layout without values of their own: a value is the leading part of its key.
    #[must_use]
    pub const fn without_values(self) -> Layout {
        Layout { value_stride: 0, ..self }
    }

    /// Elements of one head's keys in a block.
    pub const fn keys(&self) -> usize {
        self.tokens * self.head_dim
    }

    /// Elements of one head's values in a block.
    pub const fn values(&self) -> usize {
        self.tokens * self.value_stride
    }

    /// Elements of a block.
    pub const fn elements(&self) -> usize {
        self.heads * (self.keys() + self.values())
    }

    /// Bytes of the codes; the scales, if any, begin here.
    pub const fn scale_plane(&self) -> usize {
        self.elements() * code_bits(self.format) / 8
    }

    /// Bytes of a block, codes and scales.
    pub const fn block_bytes(&self) -> usize {
        let scales = match scaled_run(self.format) {
            Some((elements, bytes)) => self.elements() / elements * bytes,
            None => 0,
        };
        self.scale_plane() + scales
    }

    /// Bytes of one token's keys and values without padding: the bytes that attention must move.
    pub const fn token_bytes(&self) -> usize {
        let value_stride = if self.value_stride == 0 { 0 } else { self.head_dim };
        Layout { tokens: 1, value_stride, ..*self }.block_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_key_and_value_at_once_is_stored_once() {
        let cuda = Layout::cuda(1, 320, 16, Format::Bf16).without_values();
        assert_eq!(
            (cuda.keys(), cuda.values(), cuda.block_bytes(), cuda.token_bytes()),
            (5120, 0, 10240, 640)
        );
        let cpu = Layout::cpu(1, 20, 16, Format::F32).without_values();
        assert_eq!((cpu.keys(), cpu.values(), cpu.block_bytes(), cpu.token_bytes()), (320, 0, 1280, 80));
    }

    #[test]
    fn blocks_are_codes_and_the_scales_that_they_share() {
        let bf16 = Layout::cuda(2, 64, 16, Format::Bf16);
        assert_eq!((bf16.block_bytes(), bf16.scale_plane(), bf16.token_bytes()), (8192, 8192, 512));
        assert_eq!(Layout::cuda(2, 64, 16, Format::Fp8E4m3).block_bytes(), 4096);
        // On a CPU, rows of values are padded, but padding is not moved.
        let padded = Layout::cpu(3, 20, 16, Format::F32);
        assert_eq!((padded.keys(), padded.values()), (320, 512));
        assert_eq!((padded.block_bytes(), padded.token_bytes()), (3 * 832 * 4, 3 * 40 * 4));
        // q8_0: a scale of two bytes per 32 elements; nvfp4: one byte per 16.
        let q8 = Layout::cuda(2, 64, 16, Format::Q8_0);
        assert_eq!((q8.scale_plane(), q8.block_bytes(), q8.token_bytes()), (4096, 4096 + 256, 272));
        let nvfp4 = Layout::cuda(2, 64, 16, Format::Nvfp4);
        assert_eq!((nvfp4.scale_plane(), nvfp4.block_bytes()), (2048, 2048 + 256));
    }
}

//! How the keys and values of a block of tokens stand in memory, in one layer.
//!
//! A block is a plane of codes and, of formats whose elements share scales, a plane of these behind it. On a
//! CUDA device the codes are `[keys, values][heads][tokens][head_dim]`
//! (templates/cuda/attention/attention.cuh); on a CPU of each head the keys transposed,
//! `[head_dim][tokens]`, so that a vector is one dimension of several keys, and then the values,
//! `[tokens][head_dim, in whole vectors]`.

use crate::{VECTOR, code_bits, scaled_run};
use monomorph_formats::Format;

/// Keys and values of a block in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Heads of keys and values.
    pub heads: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements from one value row to the next.
    pub value_stride: usize,
    /// Tokens of a block.
    pub tokens: usize,
    /// Of the elements.
    pub format: Format,
}

impl Layout {
    /// As a CUDA device has them.
    pub const fn cuda(heads: usize, head_dim: usize, tokens: usize, format: Format) -> Layout {
        Layout { heads, head_dim, value_stride: head_dim, tokens, format }
    }

    /// As a CPU has them.
    pub const fn cpu(heads: usize, head_dim: usize, tokens: usize, format: Format) -> Layout {
        Layout { heads, head_dim, value_stride: head_dim.next_multiple_of(VECTOR), tokens, format }
    }

    /// Elements of one head's keys.
    pub const fn keys(&self) -> usize {
        self.tokens * self.head_dim
    }

    /// Elements of one head's values.
    pub const fn values(&self) -> usize {
        self.tokens * self.value_stride
    }

    /// Elements of a block.
    pub const fn elements(&self) -> usize {
        self.heads * (self.keys() + self.values())
    }

    /// Bytes of the codes, behind which the scales begin, if there are any.
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

    /// Bytes of one token's keys and values, without what pads them: what attention has to move.
    pub const fn token_bytes(&self) -> usize {
        Layout { tokens: 1, value_stride: self.head_dim, ..*self }.block_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_codes_and_the_scales_that_they_share() {
        let bf16 = Layout::cuda(2, 64, 16, Format::Bf16);
        assert_eq!((bf16.block_bytes(), bf16.scale_plane(), bf16.token_bytes()), (8192, 8192, 512));
        assert_eq!(Layout::cuda(2, 64, 16, Format::Fp8E4m3).block_bytes(), 4096);
        // Rows of values are padded on a CPU, and what is moved is not.
        let padded = Layout::cpu(3, 20, 16, Format::F32);
        assert_eq!((padded.keys(), padded.values()), (320, 512));
        assert_eq!((padded.block_bytes(), padded.token_bytes()), (3 * 832 * 4, 3 * 40 * 4));
        // 32 elements to a scale of two bytes, 16 to one of one byte.
        let q8 = Layout::cuda(2, 64, 16, Format::Q8_0);
        assert_eq!((q8.scale_plane(), q8.block_bytes(), q8.token_bytes()), (4096, 4096 + 256, 272));
        let nvfp4 = Layout::cuda(2, 64, 16, Format::Nvfp4);
        assert_eq!((nvfp4.scale_plane(), nvfp4.block_bytes()), (2048, 2048 + 256));
    }
}

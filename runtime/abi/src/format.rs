//! Sizes of the formats that CUDA devices have, whose codes and block scales are in separate planes there.

use monomorph_formats::{Format, NVFP4_BLOCK};

/// The formats that CUDA devices have.
pub const ON_CARDS: [Format; 7] =
    [Format::F32, Format::Bf16, Format::F16, Format::Fp8E4m3, Format::Nvfp4, Format::Q8_0, Format::Q4_1];

/// Why no other format is met where a plan is for a CUDA device.
pub(crate) const NOT_ON_CARDS: &str = "the format has no planes: cards have no kernels for it";

/// Bits per element's code.
pub const fn code_bits(format: Format) -> usize {
    match format {
        Format::F32 => 32,
        Format::Bf16 | Format::F16 => 16,
        Format::Fp8E4m3 | Format::Q8_0 => 8,
        Format::Nvfp4 | Format::Q4_1 => 4,
        Format::Q4_0
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Iq4Nl
        | Format::Iq4Xs => {
            panic!("{}", NOT_ON_CARDS)
        }
    }
}

/// How many elements of a row share a scale, and the scale's bytes (for q4_1, of scale and minimum); `None`
/// for formats without block scales.
pub const fn scaled_run(format: Format) -> Option<(usize, usize)> {
    match format {
        Format::Q8_0 => Some((Format::Q8_0.block_elements(), 2)),
        Format::Q4_1 => Some((Format::Q4_1.block_elements(), 4)),
        Format::Nvfp4 => Some((NVFP4_BLOCK, 1)),
        Format::F32 | Format::Bf16 | Format::F16 | Format::Fp8E4m3 => None,
        Format::Q4_0
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Iq4Nl
        | Format::Iq4Xs => {
            panic!("{}", NOT_ON_CARDS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Separate planes are as large as blocks that hold both; nvfp4's scales come on top, because they are
    /// separate tensors in files, too.
    #[test]
    fn planes_hold_what_blocks_do() {
        for format in ON_CARDS {
            let elements = scaled_run(format).map_or(1, |(elements, _)| elements);
            let scales = scaled_run(format).map_or(0, |(_, bytes)| bytes);
            let beside = if format == Format::Nvfp4 { scales } else { 0 };
            assert_eq!(elements, format.block_elements(), "{format}");
            assert_eq!(elements * code_bits(format) / 8 + scales, format.block_bytes() + beside, "{format}");
        }
    }
}

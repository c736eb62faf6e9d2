//! Tiles of 16 rows, in which a CPU keeps a matrix.

use crate::VECTOR;
use monomorph_formats::{FP8_BLOCK, Format, NVFP4_BLOCK, ScaleForm};

/// Bytes of a tile of `columns` columns, which are whole blocks: its codes, and the scales beside them. Each
/// of its rows has a scale of its own as an f32, of all columns or of every 128; the e4m3 scales of nvfp4 are
/// kept as they are, and the scale on top of them is the row's.
pub const fn tile_bytes(format: Format, scales: Option<ScaleForm>, columns: usize) -> usize {
    let codes = columns / format.block_elements() * row_bytes(format);
    let scales = match scales {
        None => 0,
        Some(ScaleForm::Tensor) => size_of::<f32>(),
        Some(ScaleForm::Block128) => columns.div_ceil(FP8_BLOCK) * size_of::<f32>(),
        Some(ScaleForm::Modelopt | ScaleForm::CompressedTensors) => columns / NVFP4_BLOCK + size_of::<f32>(),
    };
    VECTOR * (codes + scales)
}

/// Bytes of a block of one row. In blocks of 256, scales and minima of four and six bits take a byte each.
const fn row_bytes(format: Format) -> usize {
    match format {
        Format::Q2K => format.block_bytes() + 16,
        Format::Q3K | Format::Q4K | Format::Q5K => format.block_bytes() + 4,
        Format::Iq4Xs => format.block_bytes() + 2,
        _ => format.block_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_holds_what_the_file_does_and_a_row_s_scales() {
        assert_eq!(tile_bytes(Format::Q4_1, None, 96), 16 * 60);
        assert_eq!(tile_bytes(Format::Bf16, None, 7), 16 * 14);
        assert_eq!(tile_bytes(Format::Q5_0, None, 64), 16 * 44);
        assert_eq!(tile_bytes(Format::Q5K, None, 512), 16 * 2 * 180);
        assert_eq!(tile_bytes(Format::Q6K, None, 256), 16 * 210);
        assert_eq!(tile_bytes(Format::Q2K, None, 256), 16 * 100);
        assert_eq!(tile_bytes(Format::Iq4Xs, None, 256), 16 * 138);
        assert_eq!(tile_bytes(Format::Fp8E4m3, Some(ScaleForm::Tensor), 300), 16 * 304);
        assert_eq!(tile_bytes(Format::Fp8E4m3, Some(ScaleForm::Block128), 300), 16 * 312);
        for form in [ScaleForm::Modelopt, ScaleForm::CompressedTensors] {
            assert_eq!(tile_bytes(Format::Nvfp4, Some(form), 48), 16 * (24 + 3 + 4));
        }
    }
}

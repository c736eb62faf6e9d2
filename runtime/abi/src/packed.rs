//! The layout of a matrix in the memory of a CUDA device ([ADR
//! 0009](../../../docs/adr/0009-one-packed-copy-of-the-weights.md)): tiles of 8 rows, each a run of units of
//! 512 bytes, with separate planes of scales (templates/cuda/core/formats.cuh).
//!
//! If each expert has a matrix, a plane holds those of all experts back to back, without gaps: first all
//! codes, then all scales, then all row scales.

use crate::format::NOT_ON_CARDS;
use crate::{ON_CARDS, code_bits, scaled_run};
use monomorph_formats::{FP8_BLOCK, Format, ScaleForm};

/// Rows per tile.
pub const TILE_ROWS: usize = 8;
/// Bytes of the codes of one tile over one unit's columns: 16 for each lane of a warp.
pub const UNIT_BYTES: usize = 512;
/// Bytes of one row in a unit: four lanes.
pub const ROW_BYTES: usize = UNIT_BYTES / TILE_ROWS;
/// Alignment of planes. It covers bulk copies and the 16-byte loads of every kernel, with room to spare.
pub const ALIGNMENT: u64 = 256;
/// Bytes of an f32 scale: of a row, or of a block of 128 by 128.
const F32: usize = 4;

/// How the parts of a matrix are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Stacked by row.
    Stacked,
    /// Two parts, gate and up, in alternating tiles, so that one core computes both halves of a product.
    Gated,
}

impl Packing {
    /// Tiles of `tile_rows` rows for a matrix of `rows` outputs, both parts together.
    pub const fn tiles(self, rows: usize, tile_rows: usize) -> usize {
        match self {
            Packing::Stacked => rows.div_ceil(tile_rows),
            Packing::Gated => 2 * (rows / 2).div_ceil(tile_rows),
        }
    }
}

/// A plane of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Elements; the only plane of a vector or norm weight (f32).
    Codes,
    /// Block scales.
    Scales,
    /// One scale a row.
    RowScales,
}

/// Bytes of the planes of a packed matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// Number of code elements.
    pub codes: u64,
    /// Block scales.
    pub scales: u64,
    /// Row scales, f32.
    pub row_scales: u64,
}

impl Planes {
    /// Bytes of all planes together.
    pub const fn total(&self) -> u64 {
        self.codes + self.scales + self.row_scales
    }
}

/// The shape and formats of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Format of the codes in the checkpoint.
    pub stored: Format,
    /// Whether the codes are floats stored as f16: each row is multiplied by a power of two, which its row
    /// scale undoes.
    pub halves: bool,
    /// The form of the scales of fp8 and nvfp4 codes.
    pub scales: Option<ScaleForm>,
    /// How the parts are combined.
    pub packing: Packing,
    /// Number of outputs, of all parts together.
    pub rows: usize,
    /// Number of inputs.
    pub columns: usize,
}

impl Matrix {
    /// The format of the codes on the device.
    pub const fn held(&self) -> Format {
        if self.halves { Format::F16 } else { self.stored }
    }

    /// Number of tiles of 8 rows.
    pub const fn tiles(&self) -> usize {
        self.packing.tiles(self.rows, TILE_ROWS)
    }

    /// Columns per unit.
    pub const fn unit_columns(&self) -> usize {
        unit_columns(self.held())
    }

    /// Units per row, the last zero-padded.
    pub const fn units(&self) -> usize {
        self.columns.div_ceil(self.unit_columns())
    }

    /// Bytes of one tile's codes.
    pub const fn tile_codes(&self) -> usize {
        self.units() * UNIT_BYTES
    }

    /// Bytes of one tile's block scales.
    pub const fn tile_scales(&self) -> usize {
        match (self.held(), self.scales) {
            (Format::Fp8E4m3, Some(ScaleForm::Block128)) => self.columns.div_ceil(FP8_BLOCK) * F32,
            (held, _) => self.units() * unit_scale_bytes(held),
        }
    }

    /// Bytes of one tile's row scales.
    pub const fn tile_row_scales(&self) -> usize {
        match self.held() {
            Format::Nvfp4 | Format::Fp8E4m3 => F32 * TILE_ROWS,
            _ if self.halves => F32 * TILE_ROWS,
            _ => 0,
        }
    }

    /// Bytes of the planes, of one expert if each has a matrix.
    pub const fn planes(&self) -> Planes {
        let tiles = self.tiles();
        Planes {
            codes: (tiles * self.tile_codes()) as u64,
            scales: (tiles * self.tile_scales()) as u64,
            row_scales: (tiles * self.tile_row_scales()) as u64,
        }
    }
}

/// Columns per unit for codes of this format.
pub const fn unit_columns(format: Format) -> usize {
    ROW_BYTES * 8 / code_bits(format)
}

/// Bytes of the block scales of a tile's unit.
pub const fn unit_scale_bytes(format: Format) -> usize {
    match scaled_run(format) {
        Some((elements, bytes)) => unit_columns(format) / elements * TILE_ROWS * bytes,
        None => 0,
    }
}

/// The name of a format in C++, a member of `Format`.
pub const fn cuda_name(format: Format) -> &'static str {
    match format {
        Format::F32 => "F32",
        Format::Bf16 => "BF16",
        Format::F16 => "F16",
        Format::Fp8E4m3 => "FP8_E4M3",
        Format::Nvfp4 => "NVFP4",
        Format::Q8_0 => "Q8_0",
        Format::Q4_1 => "Q4_1",
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

/// The text of `templates/cuda/core/packed.cuh`.
pub fn header() -> String {
    let formats = ON_CARDS;
    let names = formats.map(cuda_name).join(", ");
    let sizes = formats.map(|format| {
        format!(
            "template <>\nstruct Packed<Format::{}> {{\n    \
             static constexpr int BITS = {}, SCALE_BYTES = {};\n}};\n",
            cuda_name(format),
            code_bits(format),
            unit_scale_bytes(format)
        )
    });
    format!(
        "\
// Printed from runtime/abi/src/packed.rs: `cargo xtask test --bless` does it again.
#pragma once

namespace monomorph {{

enum class Format {{ {names} }};

constexpr int UNIT_BYTES = {UNIT_BYTES};  // 32 lanes of 16 bytes
constexpr int TILE_ROWS = {TILE_ROWS};

// Bits of a code, and bytes of the block scales of a unit.
template <Format F>
struct Packed;
{}
}}  // namespace monomorph
",
        sizes.concat()
    )
}

/// Bytes of the arena that a plane of `bytes` takes.
pub const fn claimed(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Bytes of a vector of f32, zero-padded to the alignment.
pub const fn vector_bytes(length: usize) -> u64 {
    claimed((F32 * length) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each format: packing, rows and columns, and the planes, computed by hand.
    #[test]
    fn planes_have_the_sizes_of_the_table() {
        use Format::{Bf16, F16, F32, Fp8E4m3, Nvfp4, Q4_1, Q8_0};
        use Packing::{Gated, Stacked};
        let block = Some(ScaleForm::Block128);
        for (stored, halves, scales, (packing, rows, columns), planes) in [
            (F32, false, None, (Stacked, 17, 33), [3 * 3 * 512, 0, 0]),
            (Bf16, false, None, (Stacked, 17, 33), [3 * 2 * 512, 0, 0]),
            // Floats stored as f16 have a scale per row.
            (Bf16, true, None, (Stacked, 17, 33), [3 * 2 * 512, 0, 3 * 32]),
            (F16, true, None, (Stacked, 17, 33), [3 * 2 * 512, 0, 3 * 32]),
            (F32, true, None, (Stacked, 17, 33), [3 * 2 * 512, 0, 3 * 32]),
            (Q8_0, false, None, (Stacked, 18, 130), [3 * 3 * 512, 3 * 3 * 32, 0]),
            (Q4_1, false, None, (Gated, 2 * 9, 128), [4 * 512, 4 * 128, 0]),
            (Nvfp4, false, Some(ScaleForm::Modelopt), (Stacked, 8, 256), [2 * 512, 2 * 64, 32]),
            (Fp8E4m3, false, Some(ScaleForm::Tensor), (Stacked, 16, 128), [2 * 2 * 512, 0, 64]),
            (Fp8E4m3, false, block, (Stacked, 16, 129), [2 * 3 * 512, 2 * 2 * 4, 64]),
            (Fp8E4m3, false, block, (Gated, 18, 130), [4 * 3 * 512, 4 * 2 * 4, 4 * 32]),
        ] {
            let found = Matrix { stored, halves, scales, packing, rows, columns }.planes();
            assert_eq!([found.codes, found.scales, found.row_scales], planes, "{stored} {scales:?}");
        }
        assert_eq!((claimed(0), claimed(257), vector_bytes(65)), (0, 512, 512));
    }
}

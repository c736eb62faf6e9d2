//! How a matrix stands on the device (docs/adr/0009), in numbers: the compiler's `plan/packed.rs` counts the same.

use monomorph_formats::{FP8_BLOCK, Format, ScaleForm};

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 8;
/// Bytes of the codes of one tile over one unit's columns: 16 for each of 32 lanes.
pub(crate) const UNIT_BYTES: usize = 512;
/// Bytes of one row of a unit: four lanes.
pub(crate) const ROW_BYTES: usize = UNIT_BYTES / TILE_ROWS;
/// Planes begin at multiples of this: what bulk copies and 16-byte loads of any kernel want, with room to spare.
pub(crate) const ALIGNMENT: u64 = 256;

/// How the parts of a matrix stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One below the other.
    Stacked,
    /// Two parts in alternating tiles.
    Gated,
}

/// A packed matrix: the stack states one constant for each of its matrices.
#[derive(Clone, Copy, Debug)]
pub struct MatrixShape {
    /// Of the codes in the checkpoint.
    pub stored: Format,
    /// Whether these are floats and held in f16: each row times a power of two, which its row scale undoes.
    pub halves: bool,
    /// How fp8 and nvfp4 codes are scaled.
    pub scales: Option<ScaleForm>,
    /// Outputs of each part.
    pub parts: &'static [usize],
    /// Inputs.
    pub columns: usize,
    /// How parts stand beside each other.
    pub packing: Packing,
    /// How many experts have such a matrix each: a plane holds theirs one behind the other, without gaps. 1 for a matrix
    /// of no expert.
    pub experts: usize,
}

impl MatrixShape {
    /// Of the codes on the device.
    pub const fn held(&self) -> Format {
        if self.halves { Format::F16 } else { self.stored }
    }

    /// Tiles of all experts.
    pub const fn all_tiles(&self) -> usize {
        self.experts * self.tiles()
    }

    /// Tiles of 8 rows, of one expert.
    pub const fn tiles(&self) -> usize {
        match self.packing {
            Packing::Stacked => {
                let (mut rows, mut part) = (0, 0);
                while part < self.parts.len() {
                    rows += self.parts[part];
                    part += 1;
                }
                rows.div_ceil(TILE_ROWS)
            }
            Packing::Gated => 2 * self.parts[0].div_ceil(TILE_ROWS),
        }
    }

    /// Columns of one unit.
    pub const fn unit_columns(&self) -> usize {
        match self.held() {
            Format::F32 => 16,
            Format::Bf16 | Format::F16 => 32,
            Format::Fp8E4m3 | Format::Q8_0 => 64,
            Format::Nvfp4 | Format::Q4_1 => 128,
        }
    }

    /// Units a row, the last one filled up with zeros.
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
            (Format::F32 | Format::Bf16 | Format::F16, _) => 0,
            (Format::Q8_0, _) => self.units() * 2 * TILE_ROWS * 2,
            (Format::Q4_1, _) => self.units() * 4 * TILE_ROWS * 4,
            (Format::Nvfp4, _) => self.units() * TILE_ROWS * 8,
            (Format::Fp8E4m3, Some(ScaleForm::Block128)) => self.columns.div_ceil(FP8_BLOCK) * 4,
            (Format::Fp8E4m3, _) => 0,
        }
    }

    /// Bytes of one tile's row scales.
    pub const fn tile_row_scales(&self) -> usize {
        match (self.held(), self.scales) {
            (Format::Nvfp4 | Format::Fp8E4m3, _) => 4 * TILE_ROWS,
            _ if self.halves => 4 * TILE_ROWS,
            _ => 0,
        }
    }

    /// Whether its planes, of one expert, are of these bytes: what the plan counted.
    pub const fn has_planes(&self, codes: usize, scales: usize, row_scales: usize) -> bool {
        let tiles = self.tiles();
        tiles * self.tile_codes() == codes
            && tiles * self.tile_scales() == scales
            && tiles * self.tile_row_scales() == row_scales
    }

    /// Bytes on the device, of all experts, each plane aligned.
    pub const fn bytes(&self) -> u64 {
        let tiles = self.all_tiles();
        claimed(tiles * self.tile_codes())
            + claimed(tiles * self.tile_scales())
            + claimed(tiles * self.tile_row_scales())
    }
}

/// Bytes that a vector of f32 takes: zeros follow up to the alignment.
pub const fn vector_bytes(length: usize) -> u64 {
    claimed(4 * length)
}

/// What a plane of `bytes` takes of the arena.
pub const fn claimed(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALIGNMENT)
}

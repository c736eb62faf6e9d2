//! How a matrix stands in the memory of a CUDA device, in bytes (docs/adr/0009): tiles of 8 rows, each a run of units of
//! 512 bytes, and planes of scales beside them. The loader packs the same way, and the kernels read it.
//!
//! Where experts have a matrix each, a plane holds that of every expert, one behind the other without gaps: all experts'
//! codes, then all scales, then all scales of rows.

use super::Packing;
use super::cuda::Plane;
use crate::spec::types::Compute;
use monomorph_formats::{FP8_BLOCK, Format, ScaleForm};

/// Rows of a tile.
pub const TILE_ROWS: usize = 8;
/// Bytes of the codes of one tile and one unit's columns: 16 for each lane of a warp.
pub const UNIT_BYTES: usize = 512;

/// Bytes of the planes of a packed matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// Elements.
    pub codes: u64,
    /// Scales of blocks.
    pub scales: u64,
    /// f32 scales of rows.
    pub row_scales: u64,
}

impl Planes {
    /// All planes.
    pub fn total(&self) -> u64 {
        self.codes + self.scales + self.row_scales
    }

    /// Bytes from a plane of one expert's matrix to the next expert's, where these are the planes of one.
    pub fn expert_stride(&self, plane: Plane) -> u64 {
        match plane {
            Plane::Codes => self.codes,
            Plane::Scales => self.scales,
            Plane::RowScales => self.row_scales,
        }
    }

    /// The planes of a matrix that is stored in `format`; `scales` is the form of an fp8 or nvfp4 matrix's scales.
    pub fn new(
        format: Format,
        scales: Option<ScaleForm>,
        compute: Compute,
        packing: Packing,
        rows: usize,
        columns: usize,
    ) -> Planes {
        let halves = halves(format, compute);
        let format = if halves { Format::F16 } else { format };
        let (tiles, units) = (tiles(packing, rows), columns.div_ceil(unit_columns(format)));
        let of_units = |bytes: usize| (tiles * units * bytes) as u64;
        let of_rows = (4 * tiles * TILE_ROWS) as u64;
        let (scales, row_scales) = match format {
            Format::F32 | Format::Bf16 | Format::F16 => (0, if halves { of_rows } else { 0 }),
            Format::Q8_0 => (of_units(2 * TILE_ROWS * 2), 0),
            Format::Q4_1 => (of_units(4 * TILE_ROWS * 4), 0),
            Format::Nvfp4 => (of_units(TILE_ROWS * 8), of_rows),
            Format::Fp8E4m3 => match scales {
                Some(ScaleForm::Block128) => ((4 * tiles * columns.div_ceil(FP8_BLOCK)) as u64, of_rows),
                _ => (0, of_rows),
            },
        };
        Planes { codes: of_units(UNIT_BYTES), scales, row_scales }
    }
}

/// Whether a matrix of stored floats is held in f16, each row times a power of two that a scale of the row undoes.
pub fn halves(stored: Format, compute: Compute) -> bool {
    compute == Compute::F16 && matches!(stored, Format::F32 | Format::Bf16 | Format::F16)
}

/// Tiles of a matrix of `rows` outputs.
pub fn tiles(packing: Packing, rows: usize) -> usize {
    match packing {
        Packing::Stacked => rows.div_ceil(TILE_ROWS),
        Packing::Gated => 2 * (rows / 2).div_ceil(TILE_ROWS),
    }
}

/// Columns of one unit.
pub fn unit_columns(format: Format) -> usize {
    match format {
        Format::F32 => 16,
        Format::Bf16 | Format::F16 => 32,
        Format::Fp8E4m3 | Format::Q8_0 => 64,
        Format::Nvfp4 | Format::Q4_1 => 128,
    }
}

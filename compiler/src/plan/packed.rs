//! Matrices of the plan in the memory of a CUDA device.

pub use monomorph_abi::packed::{
    Matrix, Packing, Plane, Planes, TILE_ROWS, UNIT_BYTES, cuda_name, unit_columns, unit_scale_bytes,
};

use crate::spec::types::Compute;
use monomorph_formats::Format;

/// Whether a matrix of stored floats is kept as f16, with each row multiplied by a power of two that a row
/// scale undoes.
pub fn halves(stored: Format, compute: Compute) -> bool {
    compute == Compute::F16 && matches!(stored, Format::F32 | Format::Bf16 | Format::F16)
}

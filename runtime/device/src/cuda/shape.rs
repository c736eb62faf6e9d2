//! The shape of a matrix as stated by the generated stack: what the loader packs.

pub use monomorph_abi::packed::{Packing, vector_bytes};
pub(crate) use monomorph_abi::packed::{ROW_BYTES, TILE_ROWS, UNIT_BYTES};

use monomorph_abi::packed::{self, claimed};
use monomorph_formats::{Format, ScaleForm};

/// A packed matrix. The stack has one such constant for each of its matrices.
#[derive(Clone, Copy, Debug)]
pub struct MatrixShape {
    /// Format of the codes in the checkpoint.
    pub stored: Format,
    /// Whether the codes are floats stored as f16: each row is multiplied by a power of two, which its row
    /// scale undoes.
    pub halves: bool,
    /// The form of the scales of fp8 and nvfp4 codes.
    pub scales: Option<ScaleForm>,
    /// Number of outputs of each part.
    pub parts: &'static [usize],
    /// Number of inputs.
    pub columns: usize,
    /// How the parts are combined.
    pub packing: Packing,
    /// Number of experts that have such a matrix each; a plane holds theirs back to back, without gaps. 1 for
    /// a matrix that belongs to no expert.
    pub experts: usize,
}

impl MatrixShape {
    /// The layout of one expert's matrix on the device.
    pub const fn matrix(&self) -> packed::Matrix {
        let (mut rows, mut part) = (0, 0);
        while part < self.parts.len() {
            rows += self.parts[part];
            part += 1;
        }
        let MatrixShape { stored, halves, scales, columns, packing, .. } = *self;
        packed::Matrix { stored, halves, scales, packing, rows, columns }
    }

    /// Tiles of all experts.
    pub const fn all_tiles(&self) -> usize {
        self.experts * self.matrix().tiles()
    }

    /// Bytes on the device for all experts, with each plane aligned.
    pub const fn bytes(&self) -> u64 {
        let (planes, experts) = (self.matrix().planes(), self.experts as u64);
        claimed(experts * planes.codes)
            + claimed(experts * planes.scales)
            + claimed(experts * planes.row_scales)
    }
}

//! A matrix as the generated stack states it: what the loader packs.

pub use monomorph_abi::packed::{Packing, vector_bytes};
pub(crate) use monomorph_abi::packed::{ROW_BYTES, TILE_ROWS, UNIT_BYTES};

use monomorph_abi::packed::{self, claimed};
use monomorph_formats::{Format, ScaleForm};

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
    /// How many experts have such a matrix each: a plane holds theirs one behind the other, without gaps. 1
    /// for a matrix of no expert.
    pub experts: usize,
}

impl MatrixShape {
    /// How it stands on the device: of one expert.
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

    /// Bytes on the device, of all experts, each plane aligned.
    pub const fn bytes(&self) -> u64 {
        let (planes, experts) = (self.matrix().planes(), self.experts as u64);
        claimed(experts * planes.codes)
            + claimed(experts * planes.scales)
            + claimed(experts * planes.row_scales)
    }
}

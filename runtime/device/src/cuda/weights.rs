//! Weights on the device, and a stack's description of the tensors it needs.

use super::fault::Fault;
use super::memory::Memory;
use super::pointer::Pointer;
use super::shape::MatrixShape;
use crate::rows_of::FileRows;
use monomorph_abi::cut::Segment;

/// The planes of a packed matrix. If each expert has one, a plane holds all of theirs back to back.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// The packed elements.
    pub codes: Pointer,
    /// Block scales; null for formats without.
    pub scales: Pointer,
    /// Row scales, f32; null for formats without.
    pub row_scales: Pointer,
}

impl Matrix {
    pub(crate) fn take(memory: &mut Memory, shape: &MatrixShape) -> Result<Matrix, Fault> {
        let tiles = shape.all_tiles();
        let mut plane = |bytes: usize| match bytes {
            0 => Ok(Pointer::NULL),
            bytes => memory.take((tiles * bytes) as u64),
        };
        Ok(Matrix {
            codes: plane(shape.matrix().tile_codes())?,
            scales: plane(shape.matrix().tile_scales())?,
            row_scales: plane(shape.matrix().tile_row_scales())?,
        })
    }

    /// The matrix from tile `tile` on, counted over all experts.
    pub(crate) fn starting_at_tile(&self, shape: &MatrixShape, tile: usize) -> Matrix {
        let at = |plane: Pointer, each: usize| match plane {
            Pointer::NULL => plane,
            plane => plane.offset((tile * each) as u64),
        };
        Matrix {
            codes: at(self.codes, shape.matrix().tile_codes()),
            scales: at(self.scales, shape.matrix().tile_scales()),
            row_scales: at(self.row_scales, shape.matrix().tile_row_scales()),
        }
    }
}

/// f32 values: a bias, the weights of a norm as stored in the file, or those of a convolution by channel.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The values, followed by zeros.
    pub codes: Pointer,
}

/// The named tensor that becomes a matrix or vector, or a part of one. It may be only some of its rows: all
/// its dimensions but the last, flattened. A rank of several may hold only its share of these rows, or of the
/// columns; name, shape and companions are always those of the whole tensor.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) name: String,
    pub(crate) shape: &'static [usize],
    pub(crate) companions: Vec<String>,
    pub(crate) rows: FileRows,
    pub(crate) cut_rows: &'static [Segment],
    pub(crate) cut_columns: &'static [Segment],
    pub(crate) first_rank_only: bool,
    pub(crate) negative_rates: bool,
}

impl Part {
    /// A tensor with this shape in the file and its rows in the model's order.
    pub fn new(name: impl Into<String>, shape: &'static [usize]) -> Part {
        Part {
            name: name.into(),
            shape,
            companions: Vec::new(),
            rows: FileRows::All,
            cut_rows: &[],
            cut_columns: &[],
            first_rank_only: false,
            negative_rates: false,
        }
    }

    /// With its rows in GGUF's order for rotary heads of `head_dim` rows.
    pub fn interleaved(self, head_dim: usize) -> Part {
        Part { rows: FileRows::Interleaved(head_dim), ..self }
    }

    /// Only the `take` rows from `first` on, out of each group of `of` rows.
    pub fn of_groups(self, first: usize, take: usize, of: usize) -> Part {
        Part { rows: FileRows::Groups { first, take, of, group: None }, ..self }
    }

    /// Only the `take` rows from `first` on, out of group `group` of `of` rows.
    pub fn of_group(self, first: usize, take: usize, of: usize, group: usize) -> Part {
        Part { rows: FileRows::Groups { first, take, of, group: Some(group) }, ..self }
    }

    /// Shared out to ranks by rows: those that the model takes of the tensor, in its order, are these
    /// segments.
    pub fn cut_rows(self, segments: &'static [Segment]) -> Part {
        Part { cut_rows: segments, ..self }
    }

    /// Shared out to ranks by columns: each row is these segments.
    pub fn cut_columns(self, segments: &'static [Segment]) -> Part {
        Part { cut_columns: segments, ..self }
    }

    /// Held by the first rank, and zeros on all others: a bias of what ranks add up. Of vectors only.
    pub fn first_rank_only(self) -> Part {
        Part { first_rank_only: true, ..self }
    }

    /// Of numbers `-exp(x)` that stand for `x`. Of vectors only.
    pub fn negative_rates(self) -> Part {
        Part { negative_rates: true, ..self }
    }

    /// With a tensor of scales, for all rows; called in the order of `ScaleForm::companions`.
    pub fn scaled_by(mut self, name: impl Into<String>) -> Part {
        self.companions.push(name.into());
        self
    }
}

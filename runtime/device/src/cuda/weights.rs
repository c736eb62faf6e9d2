//! Weights on the device, and what a stack says about those it wants.

use super::fault::Fault;
use super::memory::{Memory, Pointer};
use super::shape::MatrixShape;
use crate::rows_of::FileRows;

/// The planes of a packed matrix; where experts have one each, a plane holds all of theirs, one behind the
/// other.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Elements.
    pub codes: Pointer,
    /// Scales of blocks; null for formats without.
    pub scales: Pointer,
    /// f32 scales of rows; null for formats without.
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

    /// From tile `tile` on, counted over all experts.
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

/// f32 values: a bias, the weights of a norm as the file has them, or a convolution's, channel after channel.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The values, then zeros.
    pub codes: Pointer,
}

/// The tensor that becomes (part of) a matrix or vector, by name; or some of its rows: all its dimensions but
/// the last, taken together.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) name: String,
    pub(crate) shape: &'static [usize],
    pub(crate) companions: Vec<String>,
    pub(crate) rows: FileRows,
}

impl Part {
    /// A tensor of this shape in the file, whose rows stand as the model computes them.
    pub fn new(name: impl Into<String>, shape: &'static [usize]) -> Part {
        Part { name: name.into(), shape, companions: Vec::new(), rows: FileRows::All }
    }

    /// With rows in GGUF's order for rotary heads of `head_dim` rows.
    pub fn interleaved(self, head_dim: usize) -> Part {
        Part { rows: FileRows::Interleaved(head_dim), ..self }
    }

    /// Of every group of `of` rows only the `take` from `first` on.
    pub fn of_groups(self, first: usize, take: usize, of: usize) -> Part {
        Part { rows: FileRows::Groups { first, take, of, group: None }, ..self }
    }

    /// Of group `group` of `of` rows only the `take` from `first` on.
    pub fn of_group(self, first: usize, take: usize, of: usize, group: usize) -> Part {
        Part { rows: FileRows::Groups { first, take, of, group: Some(group) }, ..self }
    }

    /// With a companion, in the order of `ScaleForm::companions`: scales of all the tensor's rows.
    pub fn scaled_by(mut self, name: impl Into<String>) -> Part {
        self.companions.push(name.into());
        self
    }
}

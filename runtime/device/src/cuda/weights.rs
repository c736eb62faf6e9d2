//! Weights on the device, and what a stack says about those it wants.

use super::fault::Fault;
use super::memory::{Memory, Pointer};
use super::shape::MatrixShape;

/// The planes of a packed matrix.
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
        let tiles = shape.tiles();
        let mut plane = |bytes: usize| match bytes {
            0 => Ok(Pointer::NULL),
            bytes => memory.take((tiles * bytes) as u64),
        };
        Ok(Matrix {
            codes: plane(shape.tile_codes())?,
            scales: plane(shape.tile_scales())?,
            row_scales: plane(shape.tile_row_scales())?,
        })
    }
}

/// f32 values: a bias, or the weights of a norm as the file has them.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The values, then zeros.
    pub codes: Pointer,
}

/// The tensor that becomes (part of) a matrix or vector, by name.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) name: String,
    pub(crate) companions: Vec<String>,
    pub(crate) rotary: Option<usize>,
}

impl Part {
    /// A tensor whose rows stand as the model computes them.
    pub fn new(name: impl Into<String>) -> Part {
        Part { name: name.into(), companions: Vec::new(), rotary: None }
    }

    /// With rows in GGUF's order for rotary heads of `head_dim` rows.
    pub fn interleaved(self, head_dim: usize) -> Part {
        Part { rotary: Some(head_dim), ..self }
    }

    /// With a companion, in the order of `ScaleForm::companions`.
    pub fn scaled_by(mut self, name: impl Into<String>) -> Part {
        self.companions.push(name.into());
        self
    }
}

//! Matrix products around and between the other blocks, and the dense block.

use super::Kind;
use crate::plan::{BufferId, FieldId, Work};
use crate::spec::types::Activation;

/// `out = matrix * round(norm(x)) + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Input.
    pub x: BufferId,
    /// Before the product.
    pub norm: FieldId,
    /// One or more products stacked.
    pub matrix: FieldId,
    /// Of all of them.
    pub bias: Option<FieldId>,
    /// Products side by side.
    pub out: BufferId,
}

impl Kind for Project {
    const NAME: &'static str = "project";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm, self.matrix].into_iter().chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }
}

/// `residual += matrix * round(x) + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulate {
    /// Input.
    pub x: BufferId,
    /// The product.
    pub matrix: FieldId,
    /// Of it.
    pub bias: Option<FieldId>,
    /// Read and written.
    pub residual: BufferId,
}

impl Kind for Accumulate {
    const NAME: &'static str = "accumulate";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x, self.residual], vec![self.residual])
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.given.tokens);
    }
}

/// `out = activation(gate * round(norm(x))) * (up * round(norm(x)))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gated {
    /// Input.
    pub x: BufferId,
    /// Before the products.
    pub norm: FieldId,
    /// Gate and up, [`Packing::Gated`](crate::plan::Packing::Gated).
    pub matrix: FieldId,
    /// Gate's and up's.
    pub biases: Option<(FieldId, FieldId)>,
    /// Applied to the gate.
    pub activation: Activation,
    /// Input of the down product.
    pub out: BufferId,
}

impl Kind for Gated {
    const NAME: &'static str = "gated";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        let biases = self.biases.into_iter().flat_map(|(gate, up)| [gate, up]);
        [self.norm, self.matrix].into_iter().chain(biases).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.given.tokens);
    }
}

/// `out = matrix * round(x)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Input.
    pub x: BufferId,
    /// The product.
    pub matrix: FieldId,
    /// Residual stream.
    pub out: BufferId,
}

impl Kind for Linear {
    const NAME: &'static str = "linear";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.matrix]
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.given.tokens);
    }
}

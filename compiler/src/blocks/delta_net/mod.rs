//! The gated delta-net: a recurrent state in place of a cache.

use super::Kind;
use crate::plan::{BufferId, FieldId, Work};
use crate::spec::types::{Activation, DeltaShape};

/// `out = matrix * round(norm(x))`, `gates_out = gates * round(norm(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectDelta {
    /// Input.
    pub x: BufferId,
    /// Before the products.
    pub norm: FieldId,
    /// q, k, v and z stacked.
    pub matrix: FieldId,
    /// b and a stacked.
    pub gates: FieldId,
    /// q, k, v and z side by side.
    pub out: BufferId,
    /// b and a side by side.
    pub gates_out: BufferId,
}

impl Kind for ProjectDelta {
    const NAME: &'static str = "project-delta";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.gates_out, self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.matrix, self.gates]
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.given.tokens);
        work.product(self.gates, work.given.tokens);
    }
}

/// Convolution, delta rule, norm of every head, gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delta {
    /// q, k, v and z side by side.
    pub qkvz: BufferId,
    /// b and a side by side.
    pub ba: BufferId,
    /// Of q, k and v.
    pub convolution: FieldId,
    /// Of the decay, one a value head.
    pub a_log: FieldId,
    /// Of the decay, one a value head.
    pub dt_bias: FieldId,
    /// Of every head of the result.
    pub norm: FieldId,
    /// Applied to z.
    pub activation: Activation,
    /// Heads and widths.
    pub shape: DeltaShape,
    /// One row of all value heads.
    pub out: BufferId,
}

impl Kind for Delta {
    const NAME: &'static str = "delta";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.qkvz, self.ba], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.convolution, self.a_log, self.dt_bias, self.norm]
    }

    fn work(&self, work: &mut Work) {
        let shape = &self.shape;
        // The matrices are read and written once a sequence, of the window all rows but the newest are read,
        // and that is written; every token decays, predicts, corrects and reads.
        let matrices = shape.value_heads * shape.key_dim * shape.value_dim;
        let window = shape.taps * (2 * shape.key_width() + shape.value_width());
        work.cost.state_bytes = (4 * (2 * matrices + window)) as f64;
        if work.target.hardware.cuda().is_none() {
            // One version more behind every draft.
            work.cost.state_bytes += (4 * matrices * (work.given.outputs - 1)) as f64;
        }
        work.cost.f32_products = (work.given.tokens * 3 * matrices) as f64;
    }
}

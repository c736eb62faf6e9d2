//! The operands of a product, whatever kernel multiplies it.

use crate::plan::{BufferId, FieldId};
use crate::spec::types::Activation;

/// The epilogue that sums over ranks.
const SUM: &str = "SUM";

/// The operands of a product.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub x: BufferId,
    pub norm: Option<FieldId>,
    pub matrix: FieldId,
    /// Rows of the matrix, if not all.
    pub rows: Option<usize>,
    pub biases: [Option<FieldId>; 2],
    pub epilogue: &'static str,
    pub activation: Activation,
    pub out: BufferId,
    /// Whether a sum over ranks takes the place of what `out` holds.
    pub replaces: bool,
}

impl Operands {
    /// A product of plain rows that stores its sums.
    pub fn stored(x: BufferId, matrix: FieldId, out: BufferId) -> Operands {
        let (biases, activation, replaces) = ([None, None], Activation::Relu, false);
        Operands { x, norm: None, matrix, rows: None, biases, epilogue: "STORE", activation, out, replaces }
    }

    /// The same product as a rank's part of a sum over ranks, which is added to `out` or takes its place.
    pub fn summed(self, out: BufferId, adds: bool) -> Operands {
        Operands { epilogue: SUM, out, replaces: !adds, ..self }
    }

    /// The same product, activated.
    pub fn activated(self, activation: Activation) -> Operands {
        Operands { epilogue: "ACTIVATED", activation, ..self }
    }

    /// Whether it is a part of a sum over ranks.
    pub fn sums(&self) -> bool {
        self.epilogue == SUM
    }

    /// The same product of normed rows.
    pub fn normed(self, norm: FieldId) -> Operands {
        Operands { norm: Some(norm), ..self }
    }
}

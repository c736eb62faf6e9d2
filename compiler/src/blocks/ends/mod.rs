//! The ends of a stack: the embedding, and the rows whose logits are wanted.

use super::Kind;
use crate::plan::{BufferId, FieldId, Work};

/// `out = table[tokens]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    /// The embedding.
    pub table: FieldId,
    /// Residual stream.
    pub out: BufferId,
}

impl Kind for Embed {
    const NAME: &'static str = "embed";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.table]
    }

    fn work(&self, work: &mut Work) {
        work.rows_of(self.table);
    }
}

/// `out = rows of x whose logits are wanted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    /// Input.
    pub x: BufferId,
    /// Fewer rows.
    pub out: BufferId,
}

impl Kind for Select {
    const NAME: &'static str = "select";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn work(&self, _: &mut Work) {}
}

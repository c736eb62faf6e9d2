//! A mixture of experts, with or without one that every token is given to.

use super::Kind;
use crate::plan::{BufferId, FieldId, Work};
use crate::spec::types::Activation;

/// The router, the gated halves of the experts it chooses, and of the shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Input.
    pub x: BufferId,
    /// Before all products.
    pub norm: FieldId,
    /// The router's product; below it, where there is a shared expert, the row that weighs that.
    pub router: FieldId,
    /// Its logits, and beside them what weighs the shared expert, before the sigmoid.
    pub logits: BufferId,
    /// What is chosen: weights, then experts.
    pub routing: BufferId,
    /// Gate and up of every expert, [`Packing::Gated`](crate::plan::Packing::Gated).
    pub matrix: FieldId,
    /// How many a token is given to.
    pub active: usize,
    /// Whether the weights chosen are divided by their sum.
    pub renormalise: bool,
    /// Applied to every gate.
    pub activation: Activation,
    /// Input of the down products: the chosen experts' side by side.
    pub out: BufferId,
    /// The expert every token is given to.
    pub shared: Option<SharedUp>,
}

/// The shared expert's part of [`Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedUp {
    /// Gate and up, [`Packing::Gated`](crate::plan::Packing::Gated).
    pub matrix: FieldId,
    /// Input of its down product.
    pub out: BufferId,
}

impl Kind for Experts {
    const NAME: &'static str = "experts";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let shared = self.shared.iter().map(|it| it.out);
        (vec![self.x], [self.logits, self.routing].into_iter().chain(shared).chain([self.out]).collect())
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm, self.router, self.matrix].into_iter().chain(self.shared.map(|it| it.matrix)).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        let tokens = work.given.tokens;
        work.routing(self.router, tokens);
        work.chosen(self.matrix, self.active, tokens);
        if let Some(shared) = self.shared {
            work.product(shared.matrix, tokens);
        }
    }
}

/// `residual += sum of weight * down * round(inner) + sigmoid(scale) * shared_down * round(shared_inner)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// The chosen experts' side by side.
    pub inner: BufferId,
    /// Weights, then experts.
    pub routing: BufferId,
    /// Down of every expert.
    pub matrix: FieldId,
    /// How many a token is given to.
    pub active: usize,
    /// The expert every token is given to.
    pub shared: Option<SharedDown>,
    /// Read and written.
    pub residual: BufferId,
}

/// The shared expert's part of [`Combine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDown {
    /// Input of its down product.
    pub inner: BufferId,
    /// The router's logits, beside which stands what weighs it, before the sigmoid.
    pub logits: BufferId,
    /// Down.
    pub matrix: FieldId,
    /// Its product, where a backend keeps it.
    pub product: BufferId,
}

impl Kind for Combine {
    const NAME: &'static str = "combine";

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let read = self.shared.iter().flat_map(|it| [it.inner, it.logits]);
        let written = self.shared.iter().map(|it| it.product).chain([self.residual]).collect();
        ([self.inner, self.routing, self.residual].into_iter().chain(read).collect(), written)
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.shared.map(|it| it.matrix)).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        let tokens = work.given.tokens;
        work.chosen(self.matrix, self.active, tokens);
        if let Some(shared) = self.shared {
            work.product(shared.matrix, tokens);
        }
    }
}

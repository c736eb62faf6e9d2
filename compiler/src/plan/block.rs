//! The passes of a target with a drafter of blocks.

use super::{BufferId, LoweredPhase, PlanBody, Structure};
use crate::graph::BodyId;

/// A drafter of blocks, whose bodies follow the model's (docs/adr/0062).
///
/// Let `K` be the drafts of a step. Behind the model's logits of a step, when its tokens have been sampled
/// and drafts accepted (docs/adr/0013):
///
/// * `context` runs over all rows of the step, from the residual streams that were kept of each behind the
///   `taps`. It writes the drafter's keys and values at the rows' positions. Those of drafts that did not
///   hold lie behind the sequence, where they are written again before anything reads them.
/// * `block` runs over `1 + K` rows of each sequence that was sampled, from position `q + 1` on, where `q` is
///   that of the last token fed that holds: the token sampled last, and `K` masks. A row attends to positions
///   up to `q`, all of `context`, and to its own block, as its layer says. Row `j` drafts the token at its
///   own position, for `j` from 1 on. Keys and values that it writes are the block's alone: the next step
///   writes them again, from what the model makes of its tokens, before a block reads them.
///
/// So a step that feeds the last of a sequence's tokens writes up to `2 K + 1` positions behind it: `K` of
/// drafts that it verifies, and a block behind these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// The first of its bodies; all behind it are its own.
    pub first: BodyId,
    /// Layers of the model behind which its residual stream is kept.
    pub taps: Vec<usize>,
    /// The id of all rows of a block but the first.
    pub mask: u32,
    /// What runs over the rows of a step: body, and the drafter's layer if it has one.
    pub context: Vec<(BodyId, Option<usize>)>,
    /// What runs over blocks.
    pub block: Vec<(BodyId, Option<usize>)>,
}

impl BlockPlan {
    /// The drafter's layers that run a body, ascending.
    pub fn layers(&self, body: BodyId) -> Vec<usize> {
        let runs = self.context.iter().chain(&self.block).filter(|(of, _)| *of == body);
        runs.filter_map(|(_, layer)| *layer).collect()
    }

    /// The body that runs layers of a kind over a block: kinds stand in one order in both schedules.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn layer(&self, kind: usize) -> BodyId {
        let (embed, _) = self.block.first().expect("a block begins with its embeddings");
        let layer = BodyId(embed.0 + 1 + kind);
        assert!(
            self.block.iter().any(|(body, at)| *body == layer && at.is_some()),
            "a kind of the drafter's"
        );
        layer
    }

    /// The body of its head.
    pub fn head(&self) -> BodyId {
        self.block.last().expect("a block ends with its head").0
    }
}

impl<P: AsRef<LoweredPhase>> Structure<P> {
    /// Whether a body is a drafter's of blocks.
    pub fn in_block(&self, body: BodyId) -> bool {
        self.block.as_ref().is_some_and(|block| body >= block.first)
    }

    /// The bodies that run a drafter's layers over blocks, in the order of bodies: those that keep its keys
    /// and values.
    pub fn block_layers(&self) -> impl Iterator<Item = &PlanBody<P>> {
        let block = self.block.iter().flat_map(|block| &block.block);
        let bodies: std::collections::BTreeSet<BodyId> =
            block.filter(|(_, layer)| layer.is_some()).map(|(body, _)| *body).collect();
        bodies.into_iter().map(|body| &self.bodies[body.0])
    }

    /// The buffer of the residual streams that a drafter reads, side by side; `None` without one.
    pub fn taps(&self) -> Option<BufferId> {
        let block = self.block.as_ref()?;
        let phase = self.bodies[block.first.0].phases.first().expect("it begins with the taps").as_ref();
        phase.kind.buffers().0.first().copied()
    }
}

//! The passes that draft.

use super::{LoweredPhase, PlanBody, Structure};
use crate::graph::BodyId;

/// How a step goes on behind the model's schedule, in every program that samples or feeds a prompt
/// (docs/adr/0013).
///
/// With `K = drafts`, of a sequence at position `p` that fed `n` tokens, the last `d` of which are drafts (0
/// or `K`), and of which rows `r = n - 1 - d ..` were sampled after, `a` of the drafts held.
///
/// * *Pass 1* runs `first`, `layer` and `head`. `first` and `layer` take every row of the step, each at its
///   own position, over the step's block tables; `first` reads the model's residual stream as its last layer
///   leaves it. The token that follows row `i` is the next one fed while that is no draft; behind the last of
///   a prompt's chunk it is `SequenceStep::following`; of a row that was sampled after, the token sampled.
///   `head` takes one row a sequence that was sampled after: `r + a`, whose position is `q = p + r + a`.
/// * *Pass j* of 2 to `K` runs `again`, `layer` and `head` over one row a sequence that was sampled after, at
///   position `q + j - 1`. `again` reads the rows that the pass before selected for its head; what follows is
///   the id that it drafted.
///
/// Every pass drafts an id a sequence, so that each has `K`. Bodies hand on the residual stream in place,
/// where the model's was: its logits have been taken by then. `layer` is one layer with a K/V cache of its
/// own over the step's blocks; its weights belong to no layer of the model and stand among those outside the
/// layers. Rows behind `r + a` carry pairs that do not hold; the next step writes over their keys and values.
///
/// So it is with a draft head. Where the model [skips its recurrent layers](DraftLayers::Attending)
/// (docs/adr/0023), every pass takes one row a sequence that was sampled after: pass `j`, from 1, at position
/// `q + j`, and what stands there is the token sampled last or the id that the pass before drafted. It is
/// embedded as the model's tokens are, goes through the model's layers that attend, with their weights and
/// their keys and values, and through `head`, which is the model's, its logits cut to the ids that can be
/// drafted. The keys and values that it leaves behind position `q` hold for nobody: the step that feeds these
/// positions writes all of them, layer by layer, before that layer attends to any. Nothing of a pass reads or
/// writes recurrent state.
///
/// Where acceptance is forced (`Drafting::forced_acceptance`, a rate), a draft fed at position `x` of slot
/// `s` holds when `h >> 40` is below `rate * 2^24` (in f64, rounded down), `h` being the splitmix64 mix of
/// `s * 2^32 + x` modulo 2^64:
///
/// ```text
/// h = s * 2^32 + x + 0x9e3779b97f4a7c15
/// h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;  h = (h ^ h >> 27) * 0x94d049bb133111eb;  h = h ^ h >> 31
/// ```
///
/// and the ids of drafts that hold stand in the place of those sampled before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftPlan {
    /// `K`.
    pub drafts: usize,
    /// What begins the first pass: of a draft head, hidden states and embeddings to a residual stream, from
    /// the model's.
    pub first: BodyId,
    /// What begins the others: of a draft head, the same from the draft's own.
    pub again: BodyId,
    /// Between that and the head.
    pub layers: DraftLayers,
    /// The rows selected, and logits of what can be drafted.
    pub head: BodyId,
}

/// The layers of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLayers {
    /// One of the draft head's own.
    Own(BodyId),
    /// The model's that attend, in the schedule's order.
    Attending,
}

impl DraftPlan {
    /// The draft head's layer, where there is one.
    pub fn own_layer(&self) -> Option<BodyId> {
        match self.layers {
            DraftLayers::Own(layer) => Some(layer),
            DraftLayers::Attending => None,
        }
    }
}

impl<P: AsRef<LoweredPhase>> Structure<P> {
    /// The draft head's layer, where there is one.
    pub fn draft_layer(&self) -> Option<&PlanBody<P>> {
        self.draft.and_then(|draft| draft.own_layer()).map(|layer| &self.bodies[layer.0])
    }

    /// Bodies of the model's layers that attend, in the schedule's order.
    pub fn attending(&self) -> impl Iterator<Item = BodyId> {
        let layers = self.schedule.iter().filter(|(_, layer)| layer.is_some());
        layers.map(|(body, _)| *body).filter(|body| self.kv_heads(&self.bodies[body.0]).is_some())
    }

    /// Bodies of the passes in execution order; none where the stack drafts nothing.
    pub fn draft_schedule(&self) -> Vec<BodyId> {
        let Some(draft) = self.draft else { return Vec::new() };
        let layers: Vec<BodyId> = match draft.layers {
            DraftLayers::Own(layer) => vec![layer],
            DraftLayers::Attending => self.attending().collect(),
        };
        let begins = std::iter::once(draft.first).chain((1..draft.drafts).map(|_| draft.again));
        begins
            .flat_map(|begin| std::iter::once(begin).chain(layers.iter().copied()).chain([draft.head]))
            .collect()
    }
}

/// What a step that verifies drafts takes, and makes the next where the stack does, of one sequence after
/// [`super::Prediction::DECODE_CONTEXT`] tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speculation {
    /// Drafts of a step.
    pub drafts: usize,
    /// Bytes from memory.
    pub bytes: f64,
    /// Seconds at the hardware's limits.
    pub floor: f64,
    /// Seconds: the phases' predicted times.
    pub step: f64,
}

impl Speculation {
    /// Tokens a step gives where every draft holds with probability `acceptance`, if those before it did:
    /// `1 + p + p^2 + … + p^drafts`.
    pub fn tokens(&self, acceptance: f64) -> f64 {
        (0..=self.drafts).map(|held| acceptance.powi(held as i32)).sum()
    }
}

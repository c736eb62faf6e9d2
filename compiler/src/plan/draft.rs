//! The passes of a target that drafts itself.

use super::{LoweredPhase, PlanBody, Structure};
use crate::graph::BodyId;

/// The passes that follow the model's schedule in every program that samples or feeds a prompt
/// (docs/adr/0013).
///
/// Let `K = drafts`. A sequence at position `p` feeds `n` tokens, the last `d` of which are drafts (0 or
/// `K`). Its rows `r = n - 1 - d ..` are sampled, and `a` of the drafts are accepted.
///
/// * *Pass 1* runs `first`, `layer` and `head`. `first` and `layer` take every row of the step, each at its
///   own position, over the step's block tables; `first` reads the model's residual stream as its last layer
///   leaves it. The token that follows row `i` is the next one fed, unless that is a draft; after the last
///   row of a prompt's chunk it is `SequenceStep::following`; after a sampled row it is the token sampled.
///   `head` takes one row per sampled sequence: `r + a`, at position `q = p + r + a`.
/// * *Pass j* of 2 to `K` runs `again`, `layer` and `head` over one row per sampled sequence, at position
///   `q + j - 1`. `again` reads the rows that the pass before selected for its head; the token that follows
///   is the id that pass drafted.
///
/// Every pass drafts one id per sequence, `K` in all. Bodies pass on the residual stream in place, in the
/// model's buffer: the model's logits have been computed by then. `layer` is one layer with a K/V cache of
/// its own over the step's blocks; its weights belong to no layer of the model and are stored with those
/// outside the layers. Rows after `r + a` carry pairs that are not accepted; the next step overwrites their
/// keys and values.
///
/// This describes a draft head. If the model [skips its recurrent layers](DraftLayers::Attending)
/// (docs/adr/0023), every pass takes one row per sampled sequence: pass `j`, from 1, at position `q + j`,
/// with the token sampled last or the id that the pass before drafted. The token is embedded as the model's
/// are, and goes through the model's attention layers, with their weights and their keys and values, and
/// through `head`, which is the model's with its logits cut to the ids that may be drafted. The keys and
/// values that it leaves after position `q` are provisional: the step that feeds these positions writes all
/// of them, layer by layer, before that layer attends to any. A pass neither reads nor writes recurrent
/// state.
///
/// If acceptance is forced (`Drafting::forced_acceptance`, a rate), a draft fed at position `x` of slot `s`
/// is accepted when `h >> 40` is below `rate * 2^24` (in f64, rounded down), where `h` is the splitmix64 mix
/// of `s * 2^32 + x` modulo 2^64:
///
/// ```text
/// h = s * 2^32 + x + 0x9e3779b97f4a7c15
/// h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;  h = (h ^ h >> 27) * 0x94d049bb133111eb;  h = h ^ h >> 31
/// ```
///
/// The ids of accepted drafts then replace those sampled before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftPlan {
    /// `K`: drafts per step of a sequence.
    pub drafts: usize,
    /// Start of the first pass. In a draft head it turns the model's hidden states and embeddings into a
    /// residual stream.
    pub first: BodyId,
    /// Start of the other passes. In a draft head it does the same from the draft's own hidden states; it is
    /// the last body.
    pub again: BodyId,
    /// Layers between start and head.
    pub layers: DraftLayers,
    /// Selects rows, and computes logits of the ids that may be drafted.
    pub head: BodyId,
}

/// The layers of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLayers {
    /// The draft head's own layer.
    Own(BodyId),
    /// The model's attention layers, in the schedule's order.
    Attending,
}

impl DraftPlan {
    /// The draft head's layer, if there is one.
    pub fn own_layer(&self) -> Option<BodyId> {
        match self.layers {
            DraftLayers::Own(layer) => Some(layer),
            DraftLayers::Attending => None,
        }
    }
}

impl<P: AsRef<LoweredPhase>> Structure<P> {
    /// The draft head's layer, if there is one.
    pub fn draft_layer(&self) -> Option<&PlanBody<P>> {
        self.draft.and_then(|draft| draft.own_layer()).map(|layer| &self.bodies[layer.0])
    }

    /// Bodies of the model's attention layers, in the schedule's order.
    pub fn attending(&self) -> impl Iterator<Item = BodyId> {
        let layers = self.schedule.iter().filter(|(_, layer)| layer.is_some());
        layers.map(|(body, _)| *body).filter(|body| self.kv_heads(&self.bodies[body.0]).is_some())
    }

    /// Bodies of the passes in execution order; empty if the stack drafts nothing.
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

/// The predicted cost of a step that verifies the drafts of one sequence, after
/// [`super::Prediction::DECODE_CONTEXT`] tokens. It includes making the next drafts if the stack does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speculation {
    /// Drafts per step.
    pub drafts: usize,
    /// Bytes from memory.
    pub bytes: f64,
    /// Seconds at the hardware's limits.
    pub floor: f64,
    /// Seconds: the phases' predicted times.
    pub step: f64,
}

impl Speculation {
    /// Tokens per step if every draft is accepted with probability `acceptance`, given that those before it
    /// were: `1 + p + p^2 + … + p^drafts`.
    pub fn tokens(&self, acceptance: f64) -> f64 {
        (0..=self.drafts).map(|held| acceptance.powi(held as i32)).sum()
    }
}

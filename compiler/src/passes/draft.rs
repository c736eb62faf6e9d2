//! Bodies and passes of a target that drafts itself, which follow the model's bodies.

use super::{PassError, pass_error};
use crate::blocks;
use crate::graph::{Body, BodyId, Graph};
use crate::plan::{DraftLayers, DraftPlan, LoweredPhase, PhaseKind, PlanBody};
use crate::spec::types::{DraftMethod, Drafting, Target};

/// The graph that is planned, and the draft passes. If the target drafts itself, the model's bodies are
/// followed by those that only draft passes run, and the logits of the last body are cut to the ids that may
/// be drafted. So far all passes begin alike.
///
/// # Errors
/// When the target asks for a draft head and the model has none.
pub fn bodies(target: &Target, graph: &Graph) -> Result<(Graph, Option<DraftPlan>), PassError> {
    let mut whole = graph.clone();
    let Some(Drafting { method, drafts, vocabulary, .. }) = target.draft else { return Ok((whole, None)) };
    let behind = whole.bodies.len();
    let draft = match method {
        DraftMethod::Ngram => return Ok((whole, None)),
        DraftMethod::Mtp => {
            let draft = whole.draft.take();
            let draft =
                draft.ok_or_else(|| pass_error!("{}: `--draft mtp` needs a draft head", target.name()))?;
            whole.bodies.extend(draft.bodies);
            let [first, layer, head] = [behind, behind + 1, behind + 2].map(BodyId);
            DraftPlan { drafts, first, again: first, layers: DraftLayers::Own(layer), head }
        }
        DraftMethod::Layers => {
            let ends = |run: Option<&crate::graph::Run>| run.expect("a graph begins and ends").body;
            let (first, head) = (ends(whole.schedule.first()), ends(whole.schedule.last()));
            let head = Body { name: "draft_head".to_owned(), ..whole.bodies[head.0].clone() };
            whole.bodies.push(head);
            let (layers, head) = (DraftLayers::Attending, BodyId(behind));
            DraftPlan { drafts, first, again: first, layers, head }
        }
    };
    let logits = &mut whole.bodies[draft.head.0];
    logits.values[logits.output.0].width = vocabulary;
    Ok((whole, Some(draft)))
}

/// The passes over the plan's bodies. Adds the body that begins every pass of a draft head but the first.
pub fn passes(draft: DraftPlan, bodies: &mut Vec<PlanBody<LoweredPhase>>) -> DraftPlan {
    if draft.layers == DraftLayers::Attending {
        return draft;
    }
    let of_draft = |phase: &LoweredPhase| match phase.kind {
        PhaseKind::Propose(blocks::Propose { x, norm, .. }) => Some((x, norm)),
        _ => None,
    };
    let (selected, own) = bodies[draft.head.0].phases.iter().find_map(of_draft).expect("a draft ends so");
    let mut begin = bodies[draft.first.0].clone();
    begin.name = "draft_again".to_owned();
    if let PhaseKind::DraftEmbed(blocks::DraftEmbed { x, norm, .. }) = &mut begin.phases[0].kind {
        (*x, *norm) = (selected, own);
    }
    bodies.push(begin);
    DraftPlan { again: BodyId(bodies.len() - 1), ..draft }
}

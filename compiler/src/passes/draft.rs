//! The draft head of a target that drafts: its bodies behind the model's, and its passes.

use super::{PassError, pass_error};
use crate::graph::{BodyId, Graph};
use crate::plan::{Cost, DraftPlan, Phase, PhaseKind, Plan, PlanBody, Speculation};
use crate::spec::types::{Drafting, Target};

/// The graph that a plan is made of: the model's bodies, and behind them the draft head's if the target drafts, its logits
/// cut to the ids that can be drafted. Where the draft head begins, its layer, and where it ends.
///
/// # Errors
/// When there is none to draft with.
pub fn bodies(target: &Target, graph: &Graph) -> Result<(Graph, Option<[BodyId; 3]>), PassError> {
    let mut whole = graph.clone();
    let Some(Drafting { vocabulary, .. }) = target.draft.filter(Drafting::has_head) else {
        return Ok((whole, None));
    };
    let draft = whole.draft.take();
    let draft = draft.ok_or_else(|| pass_error!("{} is to draft and has no draft head", target.name()))?;
    let first = whole.bodies.len();
    whole.bodies.extend(draft.bodies);
    let [embed, layer, head] = [first, first + 1, first + 2].map(BodyId);
    let logits = &mut whole.bodies[head.0];
    logits.values[logits.output.0].width = vocabulary;
    Ok((whole, Some([embed, layer, head])))
}

/// The passes of the draft head over the plan's bodies, to which the one is added that begins every pass but the first.
pub fn passes(target: &Target, [first, layer, head]: [BodyId; 3], bodies: &mut Vec<PlanBody>) -> DraftPlan {
    let drafts = target.draft.map_or(0, |draft| draft.drafts);
    let of_draft = |phase: &Phase| match phase.kind {
        PhaseKind::Propose { x, norm, .. } => Some((x, norm)),
        _ => None,
    };
    let (selected, own) = bodies[head.0].phases.iter().find_map(of_draft).expect("a draft ends so");
    let mut begin = bodies[first.0].clone();
    begin.name = "draft_again".to_owned();
    if let PhaseKind::DraftEmbed { x, norm, .. } = &mut begin.phases[0].kind {
        (*x, *norm) = (selected, own);
    }
    bodies.push(begin);
    let again = BodyId(bodies.len() - 1);
    DraftPlan { drafts, first, again, layer, head }
}

/// What a step should take that verifies drafts, and makes the next where the stack does; `None` where there are none.
pub fn predict(plan: &Plan) -> Option<Speculation> {
    let drafts = plan.target.draft?.drafts;
    let hardware = &plan.target.hardware;
    let of = |body: BodyId, cost: fn(&Phase) -> Cost| plan.bodies[body.0].phases.iter().map(cost);
    let mut costs: Vec<Cost> = Vec::new();
    for (body, _) in &plan.schedule {
        costs.extend(of(*body, |phase| phase.verify));
    }
    for (at, body) in plan.draft.iter().flat_map(DraftPlan::schedule).enumerate() {
        // Of the first pass, two bodies take every row of the step.
        costs.extend(of(body, if at < 2 { |phase| phase.verify } else { |phase| phase.decode }));
    }
    let sum = costs.iter().fold(Cost::default(), |sum, cost| sum + *cost);
    Some(Speculation {
        drafts,
        bytes: sum.memory_bytes(),
        floor: sum.floor(hardware),
        step: costs.iter().map(|cost| cost.predicted(hardware)).sum(),
    })
}

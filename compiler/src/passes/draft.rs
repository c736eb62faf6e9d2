//! Bodies and passes of a target that drafts itself, which follow the model's bodies.

use super::{PassError, pass_error};
use crate::blocks::draft;
use crate::graph::{Body, BodyId, Graph, Run};
use crate::plan::{BlockPlan, DraftLayers, DraftPlan, Field, LoweredPhase, PlanBody, TowerPlan};
use crate::spec::types::{DraftMethod, Drafting, Target};

/// The graph that is planned, and the draft passes or those of a drafter of blocks. If the target drafts
/// itself, the model's bodies are followed by those that only draft passes run, and the logits of the last
/// body are cut to the ids that may be drafted. The body that begins a draft head's later passes follows
/// them, once there are phases ([`begin_again`]). Those of a tower follow all of these.
///
/// # Errors
/// When the target asks for a draft head or a drafter, and the graph has none.
pub fn bodies(
    target: &Target,
    graph: &Graph,
) -> Result<(Graph, Option<DraftPlan>, Option<BlockPlan>), PassError> {
    let mut whole = graph.clone();
    let Some(Drafting { method, drafts, vocabulary, .. }) = target.draft else {
        return Ok((whole, None, None));
    };
    let behind = whole.bodies.len();
    let draft = match method {
        DraftMethod::Ngram => return Ok((whole, None, None)),
        DraftMethod::Dflash { .. } => {
            let block = block(target, &mut whole)?;
            let logits = &mut whole.bodies[block.head().0];
            logits.values[logits.output.0].width = vocabulary;
            return Ok((whole, None, Some(block)));
        }
        DraftMethod::Mtp => {
            let draft = whole.draft.take();
            let draft =
                draft.ok_or_else(|| pass_error!("{}: `--draft mtp` needs a draft head", target.name()))?;
            whole.bodies.extend(draft.bodies);
            let [first, layer, head, again] = [0, 1, 2, 3].map(|at| BodyId(behind + at));
            DraftPlan { drafts, first, again, layers: DraftLayers::Own(layer), head }
        }
        DraftMethod::Layers => {
            let ends = |run: Option<&Run>| run.expect("a graph begins and ends").body;
            let (first, head) = (ends(whole.schedule.first()), ends(whole.schedule.last()));
            let head = Body { name: "draft_head".to_owned(), ..whole.bodies[head.0].clone() };
            whole.bodies.push(head);
            let (layers, head) = (DraftLayers::Attending, BodyId(behind));
            DraftPlan { drafts, first, again: first, layers, head }
        }
    };
    let logits = &mut whole.bodies[draft.head.0];
    logits.values[logits.output.0].width = vocabulary;
    Ok((whole, Some(draft), None))
}

/// Moves the bodies of a graph's drafter behind its others, and returns its schedules over them.
fn block(target: &Target, graph: &mut Graph) -> Result<BlockPlan, PassError> {
    let behind = graph.bodies.len();
    let dflash = graph.dflash.take();
    let dflash = dflash.ok_or_else(|| pass_error!("{}: `--draft dflash` needs a drafter", target.name()))?;
    graph.bodies.extend(dflash.bodies);
    let of = |runs: &[Run]| runs.iter().map(|run| (BodyId(behind + run.body.0), run.layer)).collect();
    let (context, block) = (of(&dflash.context), of(&dflash.block));
    Ok(BlockPlan { first: BodyId(behind), taps: dflash.taps, mask: dflash.mask, context, block })
}

/// Adds the body that begins every pass of a draft head but the first, before those of a tower, to which
/// their `fields` belong.
pub fn begin_again(
    plan: &DraftPlan,
    tower: Option<&mut TowerPlan>,
    fields: &mut [Field],
    bodies: &mut Vec<PlanBody<LoweredPhase>>,
) {
    if plan.layers == DraftLayers::Attending {
        return;
    }
    let [first, head] = [plan.first, plan.head].map(|id| &bodies[id.0]);
    let phases = draft::again(&first.phases, &head.phases);
    let again = PlanBody { name: "draft_again".to_owned(), layers: first.layers.clone(), phases };
    let place = tower.as_ref().map_or(bodies.len(), |tower| tower.first.0);
    assert_eq!(plan.again, BodyId(place), "it follows the draft head's bodies");
    bodies.insert(place, again);
    if let Some(tower) = tower {
        let owners = fields.iter_mut().filter_map(|field| field.owner.as_mut());
        owners.filter(|owner| **owner >= tower.first).for_each(|owner| owner.0 += 1);
        tower.make_room();
    }
}

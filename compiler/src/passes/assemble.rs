//! Runs the passes in order and assembles their results into a plan.

use super::fuse::Fused;
use super::layout::Layout;
use super::lower::Group;
use super::lower::Lowering;
use super::memory::Assignment;
use super::{
    PassError, buckets, draft, fuse, launch, layout, memory, pass_error, precision, rules, shard, tower,
    unbuilt,
};
use crate::blocks;
use crate::graph::{BodyId, Graph};
use crate::plan::{BlockPlan, Lowered, LoweredPhase, PhaseKind, Plan, PlanBody, TowerPlan};
use crate::spec::types::{HardwareKind, Target};

/// Plans `graph` for `target`.
///
/// # Errors
/// When no rules cover the graph, or a phase cannot take its shapes.
pub fn plan(target: &Target, graph: &Graph) -> Result<Plan, PassError> {
    Ok(Plan::new(launch::launch(lower(target, graph)?)?))
}

/// Turns ops into phases.
fn lower(target: &Target, graph: &Graph) -> Result<Lowered, PassError> {
    let drafts = target.draft.is_some_and(|draft| draft.has_head());
    match target.hardware.kind {
        HardwareKind::Cpu(_) => precision::cpu(graph, drafts)?,
        HardwareKind::Cuda(_) => {
            unbuilt::cuda(target, graph)?;
            precision::cuda(graph, drafts)?;
        }
    }
    let (graph, draft, block) = draft::bodies(target, graph)?;
    let mut graph = shard::shard(&graph, target.shared_by())?;
    let mut tower = tower::bodies(target, &mut graph)?;
    let fused = fuse::fuse(&graph, &rules::parse(blocks::fusions())?)?;
    let mut layout = layout::layout(&graph, &fused, &target.hardware.kind)?;
    let buckets = buckets::buckets(target);
    let assignment = memory::assign(&graph, &fused, block.as_ref(), tower.as_ref())?;
    let mut bodies = bodies(&graph, (block.as_ref(), tower.as_ref()), &fused, &layout, &assignment)?;
    if let Some(draft) = &draft {
        draft::begin_again(draft, tower.as_mut(), &mut layout.fields, &mut bodies);
    }
    let phases = bodies.iter().flat_map(|body| &body.phases).map(|phase| phase.name.as_str());
    // A tuning file is about the plan of one rank, in which a tied head is the embedding's phase.
    let tuning = target.tuning.as_ref().filter(|_| target.ranks == 1);
    if let Some(wrong) = tuning.and_then(|tuning| tuning.unknown_phase(phases)) {
        return Err(pass_error!("{wrong}"));
    }
    Ok(Lowered {
        target: target.clone(),
        buckets,
        buffers: assignment.buffers,
        fields: layout.fields,
        bodies,
        schedule: graph.schedule.iter().map(|run| (run.body, run.layer)).collect(),
        draft,
        block,
        tower,
    })
}

fn bodies(
    graph: &Graph,
    (block, tower): (Option<&BlockPlan>, Option<&TowerPlan>),
    fused: &Fused,
    layout: &Layout,
    assignment: &Assignment,
) -> Result<Vec<PlanBody<LoweredPhase>>, PassError> {
    let model_head = graph.schedule.last().expect("a graph ends with its head").body;
    let head_groups = 0..fused.bodies[model_head.0].len();
    let norms = head_groups.filter_map(|at| layout.uses[&(model_head, at)].norms.values().next());
    let final_norm = norms.copied().next_back();
    let in_tower = |id: BodyId| tower.is_some_and(|tower| id >= tower.first);
    let body = |(index, groups): (usize, &Vec<Group>)| {
        let id = BodyId(index);
        let body = &graph.bodies[index];
        let mut phases: Vec<LoweredPhase> = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            let (uses, slices) = (&layout.uses[&(id, at)], &assignment.slices[index]);
            let in_draft = index > model_head.0 && !in_tower(id);
            let lowering = Lowering { body, group, uses, slices, final_norm, in_draft };
            let kind = lowering.kind()?;
            let name = phase_name(&kind, layout, &phases);
            let ops = group.nodes.iter().map(|node| body.nodes[node.0].op.name()).collect();
            phases.push(LoweredPhase { name, kind, ops });
        }
        let layers = match (tower.filter(|_| in_tower(id)), block.filter(|block| id >= block.first)) {
            (Some(tower), _) => tower.layers(id),
            (None, Some(block)) => block.layers(id),
            (None, None) => {
                let runs = graph.schedule.iter().filter(|run| run.body == id);
                runs.filter_map(|run| run.layer).collect()
            }
        };
        Ok(PlanBody { name: body.name.clone(), layers, phases })
    };
    fused.bodies.iter().enumerate().map(body).collect()
}

/// A phase is named after the matrix it streams, or else after its kind.
fn phase_name(kind: &PhaseKind, layout: &Layout, earlier: &[LoweredPhase]) -> String {
    let name = match kind.kind().streams() {
        Some(matrix) => layout.fields[matrix.0].name.clone(),
        None => kind.name().to_owned(),
    };
    // Two sums of a layer have one name; matrices have one each.
    let taken = |name: &str| earlier.iter().any(|phase| phase.name == name);
    debug_assert!(kind.kind().streams().is_none() || !taken(&name), "phase names are unique in a body");
    let further = (2..).map(|at| format!("{name}-{at}"));
    std::iter::once(name.clone()).chain(further).find(|name| !taken(name)).expect("there are enough numbers")
}

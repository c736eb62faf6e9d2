//! Puts the passes' results together as a plan.

use super::fuse::{Fused, Group};
use super::layout::Layout;
use super::lower::Lowering;
use super::memory::Assignment;
use super::{PassError, buckets, draft, fuse, launch, layout, memory, pass_error, precision, rules};
use crate::blocks;
use crate::graph::{BodyId, Graph};
use crate::plan::{Cost, Given, Memory, Phase, PhaseKind, Plan, PlanBody, Prediction, Work};
use crate::spec;
use crate::spec::types::{HardwareKind, Target};

/// Plans `graph` for `target`.
///
/// # Errors
/// When the backend's rules do not cover the graph, or a phase cannot take its shapes.
pub fn plan(target: &Target, graph: &Graph) -> Result<Plan, PassError> {
    if matches!(target.hardware.kind, HardwareKind::Cpu(_)) {
        precision::cpu(graph, target.draft.is_some_and(|draft| draft.has_head()))?;
    }
    let (graph, draft) = draft::bodies(target, graph)?;
    let fused = fuse::fuse(&graph, &rules::parse(blocks::fusions())?)?;
    let layout = layout::layout(&graph, &fused)?;
    let buckets = buckets::buckets(target);
    let assignment = memory::assign(&graph, &fused, &buckets)?;
    let mut bodies = bodies(target, &graph, &fused, &layout, &assignment)?;
    let draft = draft.map(|draft| draft::passes(draft, &mut bodies));
    let phases = bodies.iter().flat_map(|body| &body.phases).map(|phase| phase.name.as_str());
    if let Some(wrong) = target.tuning.as_ref().and_then(|tuning| tuning.unknown_phase(phases)) {
        return Err(pass_error!("{wrong}"));
    }
    let mut plan = Plan {
        target: target.clone(),
        buckets,
        buffers: assignment.buffers,
        fields: layout.fields,
        bodies,
        schedule: graph.schedule.iter().map(|run| (run.body, run.layer)).collect(),
        draft,
        memory: Memory { weights: 0, scratch: 0, kv_block: 0, state: 0 },
        prediction: Prediction::default(),
        speculation: None,
        cuda: None,
    };
    launch::launch(&mut plan)?;
    plan.memory = memory(&plan);
    plan.prediction = predict(&plan);
    plan.speculation = draft::predict(&plan);
    Ok(plan)
}

fn memory(plan: &Plan) -> Memory {
    let Target { hardware, model, quant, .. } = &plan.target;
    let weights = plan.fields.iter().map(|field| field.bytes(&hardware.kind) * plan.instances(field) as u64);
    let scratch = plan.cuda.iter().flat_map(|cuda| &cuda.scratch).map(|scratch| scratch.bytes);
    Memory {
        weights: weights.sum(),
        scratch: plan.buffers.iter().map(crate::plan::Buffer::bytes).chain(scratch).sum(),
        kv_block: spec::kv_block_bytes(model, quant, &hardware.kind, plan.draft_layer().is_some()) as u64,
        state: match plan.cuda {
            Some(_) => crate::plan::cuda::state_bytes(plan),
            None => spec::state_bytes(model, plan.drafts()) as u64,
        },
    }
}

fn bodies(
    target: &Target,
    graph: &Graph,
    fused: &Fused,
    layout: &Layout,
    assignment: &Assignment,
) -> Result<Vec<PlanBody>, PassError> {
    let model_head = graph.schedule.last().expect("a graph ends with its head").body;
    let head_groups = 0..fused.bodies[model_head.0].len();
    let norms = head_groups.filter_map(|at| layout.uses[&(model_head, at)].norms.values().next());
    let final_norm = norms.copied().next_back();
    let body = |(index, groups): (usize, &Vec<Group>)| {
        let id = BodyId(index);
        let body = &graph.bodies[index];
        let mut phases: Vec<Phase> = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            let (uses, slices) = (&layout.uses[&(id, at)], &assignment.slices[index]);
            let lowering = Lowering { body, group, uses, slices, final_norm, in_draft: index > model_head.0 };
            let kind = lowering.kind()?;
            let waits_for = waits_for(&phases, &kind);
            let memory = (layout.fields.as_slice(), assignment.buffers.as_slice());
            let costs = |tokens, outputs, context| {
                Work::of(&kind, target, memory, Given { tokens, outputs, context })
            };
            let rows = 1 + target.draft.map_or(0, |draft| draft.drafts);
            phases.push(Phase {
                name: phase_name(&kind, layout, &phases),
                ops: group.nodes.iter().map(|node| body.nodes[node.0].op.name()).collect(),
                waits_for,
                decode: costs(1, 1, Prediction::DECODE_CONTEXT),
                verify: costs(rows, rows, Prediction::DECODE_CONTEXT),
                prefill: costs(Prediction::PREFILL_TOKENS, 1, 0),
                kind,
            });
        }
        let layers = graph.schedule.iter().filter(|run| run.body == id).filter_map(|run| run.layer);
        Ok(PlanBody { name: body.name.clone(), layers: layers.collect(), phases })
    };
    fused.bodies.iter().enumerate().map(body).collect()
}

/// Named after the matrix it streams, or its kind.
fn phase_name(kind: &PhaseKind, layout: &Layout, earlier: &[Phase]) -> String {
    let name = match kind.streams() {
        Some(matrix) => layout.fields[matrix.0].name.clone(),
        None => kind.name().to_owned(),
    };
    debug_assert!(earlier.iter().all(|phase| phase.name != name), "phase names are unique in a body");
    name
}

/// The latest earlier writer of each buffer read, and readers and writers of the buffer written.
fn waits_for(earlier: &[Phase], kind: &PhaseKind) -> Vec<usize> {
    let (reads, writes) = kind.buffers();
    let conflicts = |phase: &Phase| {
        let (their_reads, their_writes) = phase.kind.buffers();
        let meet = |some: &[_], others: &[_]| some.iter().any(|id| others.contains(id));
        meet(&reads, &their_writes) || meet(&writes, &their_writes) || meet(&writes, &their_reads)
    };
    (0..earlier.len()).filter(|i| conflicts(&earlier[*i])).collect()
}

fn predict(plan: &Plan) -> Prediction {
    let hardware = &plan.target.hardware;
    let total = |phase_cost: fn(&Phase) -> &Cost| {
        let runs = plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
        let costs: Vec<Cost> = runs.map(|phase| *phase_cost(phase)).collect();
        let sum = costs.iter().fold(Cost::default(), |sum, cost| sum + *cost);
        (sum.floor(hardware), costs.iter().map(|cost| cost.predicted(hardware)).sum::<f64>())
    };
    let (decode_floor, decode) = total(|phase| &phase.decode);
    let (prefill_floor, prefill) = total(|phase| &phase.prefill);
    Prediction { decode_floor, decode, prefill_floor, prefill }
}

//! The last stage of a plan: costs of its phases, memory, and predicted speed.

use super::{
    Boundaries, Buffer, Cost, FieldKind, Figures, Given, Launched, Lowered, LoweredPhase, Memory, Phase,
    PhaseKind, Plan, PlanBody, Prediction, Speculation, Structure, Work, cuda,
};
use crate::graph::BodyId;
use monomorph_formats::Format;

impl Plan {
    /// Computes the figures of a launched plan.
    pub(crate) fn new(launched: Launched) -> Plan {
        let Launched { lowered, rows, cuda, boundaries } = launched;
        let bodies = lowered.bodies.iter().zip(&boundaries);
        let bodies = bodies.map(|(body, boundaries)| PlanBody {
            name: body.name.clone(),
            layers: body.layers.clone(),
            phases: body.phases.iter().zip(boundaries).map(|(it, of)| phase(&lowered, it, *of)).collect(),
        });
        let bodies = bodies.collect();
        let Lowered { target, buckets, buffers, fields, bodies: _, schedule, draft, block, tower } = lowered;
        let structure = Structure { target, buckets, buffers, fields, bodies, schedule, draft, block, tower };
        let memory = memory(&structure, &rows, cuda.as_ref());
        let (prediction, speculation) = (predict(&structure), speculate(&structure));
        Plan(Figures { structure, rows, memory, prediction, speculation, cuda })
    }
}

impl Figures {
    /// What a phase costs in another step than those of its figures, with the boundaries of a decode step.
    pub fn cost(&self, phase: &Phase, given: Given) -> Cost {
        Work::of(&phase.kind, &self.structure, given, phase.decode.boundaries)
    }

    /// What a phase costs in a step of so many sequences, each of which has `fed` rows and costs `one` alone:
    /// more rows touch more experts.
    pub fn of_sequences(&self, kind: &PhaseKind, fed: usize, sequences: usize, one: &Cost) -> Cost {
        let cost = one.of_rows(sequences);
        let Some((matrix, active)) = kind.kind().chooses() else { return cost };
        let field = self.field(matrix);
        let FieldKind::Matrix { format, .. } = field.kind else { return cost };
        let touched = |rows: usize| field.touched_experts(active, rows, self.target.ranks);
        let Some((all, counted)) = touched(sequences * fed).zip(touched(fed)) else { return cost };
        let bytes = (all - counted) * field.matrix_bytes(&self.target.hardware.kind) as f64;
        let nvfp4 = if format == Format::Nvfp4 { bytes } else { 0.0 };
        Cost { weight_bytes: cost.weight_bytes + bytes, nvfp4_bytes: cost.nvfp4_bytes + nvfp4, ..cost }
    }

    /// Buffers, and the bytes of each at the largest step: 0 if no kernel uses it.
    pub fn sizes(&self) -> impl Iterator<Item = (&Buffer, u64)> {
        sizes(&self.buffers, &self.rows)
    }
}

fn sizes<'a>(buffers: &'a [Buffer], rows: &'a [usize]) -> impl Iterator<Item = (&'a Buffer, u64)> {
    buffers.iter().zip(rows).map(|(buffer, rows)| (buffer, 4 * (rows * buffer.width) as u64))
}

fn phase(plan: &Lowered, lowered: &LoweredPhase, boundaries: Boundaries) -> Phase {
    let cost = |tokens, outputs, context, boundaries| {
        Work::of(&lowered.kind, plan, Given { tokens, outputs, context }, boundaries)
    };
    let rows = 1 + plan.drafts();
    Phase {
        decode: cost(1, 1, Prediction::DECODE_CONTEXT, boundaries.decode),
        verify: cost(rows, rows, Prediction::DECODE_CONTEXT, boundaries.verify),
        prefill: cost(Prediction::PREFILL_TOKENS, 1, 0, boundaries.prefill),
        lowered: lowered.clone(),
    }
}

fn memory(plan: &Structure<Phase>, rows: &[usize], cuda: Option<&cuda::CudaPlan>) -> Memory {
    let hardware = &plan.target.hardware.kind;
    let weights = plan.fields.iter().map(|field| field.bytes(hardware) * plan.instances(field) as u64);
    let scratch = cuda.iter().flat_map(|cuda| &cuda.scratch).map(|scratch| scratch.bytes);
    // On a CUDA device they are scratch.
    let kept = plan.tower.iter().filter(|_| cuda.is_none());
    let images = kept.map(|tower| 4 * (tower.kept_rows() * plan.target.model.hidden) as u64);
    Memory {
        weights: weights.sum(),
        scratch: sizes(&plan.buffers, rows).map(|(_, bytes)| bytes).chain(scratch).chain(images).sum(),
        kv_block: plan.kv_block_bytes(),
        state: plan.state_bytes(),
    }
}

fn predict(plan: &Structure<Phase>) -> Prediction {
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

/// The predicted cost of a step that verifies drafts, with the making of the next ones if the stack does;
/// `None` without drafts.
fn speculate(plan: &Structure<Phase>) -> Option<Speculation> {
    let drafts = plan.target.draft?.drafts;
    let hardware = &plan.target.hardware;
    let of = |body: BodyId, cost: fn(&Phase) -> Cost| plan.bodies[body.0].phases.iter().map(cost);
    let mut costs: Vec<Cost> = Vec::new();
    for (body, _) in &plan.schedule {
        costs.extend(of(*body, |phase| phase.verify));
    }
    for (at, body) in plan.draft_schedule().into_iter().enumerate() {
        // In a draft head's first pass, two bodies take every row of the step.
        let all = at < 2 && plan.draft_layer().is_some();
        costs.extend(of(body, if all { |phase| phase.verify } else { |phase| phase.decode }));
    }
    // A drafter keeps what it makes of a step's rows, and runs a block of as many.
    for (body, _) in plan.block.iter().flat_map(|block| block.context.iter().chain(&block.block)) {
        costs.extend(of(*body, |phase| phase.verify));
    }
    let sum = costs.iter().fold(Cost::default(), |sum, cost| sum + *cost);
    Some(Speculation {
        drafts,
        bytes: sum.memory_bytes(),
        floor: sum.floor(hardware),
        step: costs.iter().map(|cost| cost.predicted(hardware)).sum(),
    })
}

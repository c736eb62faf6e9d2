//! The cost of one token: the bytes and boundaries of a decode step of one sequence, and the speed they allow
//! and predict; and the memory a server claims before K/V.

use crate::plan::{Cost, FieldId, FieldKind, Given, Phase, Plan};
use crate::spec::types::TensorClass;
use monomorph_abi::serve::{CONTEXT, MEMORY_FRACTION};
use monomorph_abi::sliding::{Sliding, SlidingNeeds};
use serde::Serialize;
use std::collections::BTreeMap;

/// Context lengths at which a step is reported.
const CONTEXTS: [usize; 2] = [128, 32_768];

/// One decode step of one sequence.
#[derive(Debug, Serialize)]
pub struct StepReport {
    /// Bytes of weights by tensor class, with scales and only the chosen experts. Norms and vectors are not
    /// counted.
    pub weights: BTreeMap<&'static str, f64>,
    /// Bytes of recurrent state, read and written.
    pub state: f64,
    /// Phases and boundaries of each kind of layer.
    pub layers: Vec<LayerReport>,
    /// Boundaries of the whole step.
    pub boundaries: f64,
    /// Cost of all boundaries in microseconds.
    pub boundary_microseconds: f64,
    /// Microseconds that decoding nvfp4 takes beyond reading it.
    pub decoding_microseconds: f64,
    /// The whole step at several context lengths.
    pub contexts: Vec<ContextReport>,
    /// Memory claimed when a server starts.
    pub start: StartReport,
}

/// A kind of layer.
#[derive(Debug, Serialize)]
pub struct LayerReport {
    /// Name of the body.
    pub name: String,
    /// Number of layers.
    pub layers: usize,
    /// Phases of one layer.
    pub phases: usize,
    /// Boundaries of one layer.
    pub boundaries: f64,
}

/// A step at some context length.
#[derive(Debug, Serialize)]
pub struct ContextReport {
    /// Earlier tokens.
    pub context: usize,
    /// Bytes of keys and values.
    pub kv: f64,
    /// All bytes.
    pub bytes: f64,
    /// Tokens per second at the bandwidth.
    pub limit: f64,
    /// Tokens per second, with boundaries and decoding.
    pub predicted: f64,
}

/// A server's memory with the weights loaded and state for every sequence of a step.
#[derive(Debug, Serialize)]
pub struct StartReport {
    /// Sequences of a step.
    pub sequences: usize,
    /// Bytes of weights, state of all sequences, activations and kernel scratch.
    pub fixed: u64,
    /// Bytes left of nine tenths of the memory.
    pub left: u64,
    /// Tokens of K/V that fit there, if any are kept; a server refuses to start if one sequence does not fit.
    pub kv_tokens: Option<u64>,
    /// Longest sequence by default.
    pub context: usize,
}

/// Collects the report; `None` on a CPU, whose server plans its memory by other rules.
pub fn report(plan: &Plan) -> Option<StepReport> {
    plan.cuda.as_ref()?;
    let hardware = &plan.target.hardware;
    let phases = || plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
    let mut weights = BTreeMap::new();
    for (class, bytes) in phases().flat_map(|phase| read(plan, phase)) {
        *weights.entry(class.name()).or_insert(0.0) += bytes;
    }
    // Bodies of a tower run in no step of tokens; they stand behind all others.
    let of_text = plan.tower.as_ref().map_or(plan.bodies.len(), |tower| tower.first.0);
    let bodies = plan.bodies[..of_text].iter().filter(|body| !body.layers.is_empty());
    let layers = bodies.map(|body| LayerReport {
        name: body.name.clone(),
        layers: body.layers.len(),
        phases: body.phases.len(),
        boundaries: body.phases.iter().map(|phase| phase.decode.boundaries).sum(),
    });
    let contexts = CONTEXTS.into_iter().filter(|context| *context < plan.target.model.context);
    let contexts = contexts.map(|context| {
        let costs = || phases().map(|phase| plan.cost(phase, Given { tokens: 1, outputs: 1, context }));
        let sum = costs().fold(Cost::default(), |sum, cost| sum + cost);
        ContextReport {
            context,
            kv: sum.kv_bytes,
            bytes: sum.memory_bytes(),
            limit: hardware.bandwidth / sum.memory_bytes(),
            predicted: 1.0 / costs().map(|cost| cost.predicted(hardware)).sum::<f64>(),
        }
    });
    let boundaries = phases().map(|phase| phase.decode.boundaries).sum::<f64>();
    let apart = |cost: Cost| {
        let whole = Cost { boundaries: 0.0, ..cost };
        whole.predicted(hardware) - Cost { nvfp4_bytes: 0.0, ..whole }.predicted(hardware)
    };
    Some(StepReport {
        weights,
        state: phases().map(|phase| phase.decode.state_bytes).sum(),
        layers: layers.collect(),
        boundaries,
        boundary_microseconds: 1e6 * boundaries * hardware.boundary_seconds,
        decoding_microseconds: 1e6 * phases().map(|phase| apart(phase.decode)).sum::<f64>(),
        contexts: contexts.collect(),
        start: start(plan),
    })
}

/// The weights that a phase reads for one token, by class.
fn read(plan: &Plan, phase: &Phase) -> Vec<(TensorClass, f64)> {
    let is_matrix = |id: &FieldId| matches!(plan.field(*id).kind, FieldKind::Matrix { .. });
    let all: Vec<FieldId> = phase.kind.fields().into_iter().filter(is_matrix).collect();
    let Some(matrix) = phase.kind.kind().streams().or(all.first().copied()) else { return Vec::new() };
    let others: Vec<FieldId> = all.into_iter().filter(|id| *id != matrix).collect();
    let class = |id: FieldId| plan.field(id).parts[0].class;
    let bytes = |id: FieldId| plan.field(id).matrix_bytes(&plan.target.hardware.kind) as f64;
    let others: Vec<(TensorClass, f64)> = others.into_iter().map(|id| (class(id), bytes(id))).collect();
    // Of the experts' matrix only the chosen part is read, of a table only one row.
    let rest = phase.decode.weight_bytes - others.iter().map(|(_, bytes)| bytes).sum::<f64>();
    others.into_iter().chain([(class(matrix), rest)]).collect()
}

fn start(plan: &Plan) -> StartReport {
    let (memory, sequences) = (&plan.memory, plan.buckets.sequences);
    let fixed = memory.weights + memory.state * sequences as u64 + memory.scratch;
    let room = (plan.target.hardware.memory_bytes as f64 * MEMORY_FRACTION) as u64;
    let left = room.saturating_sub(fixed);
    let (block_tokens, context) = (plan.target.quant.kv_block, plan.target.model.context.min(CONTEXT));
    // Layers with a window have blocks beside those of the others, if they give back some: then there are no
    // draft passes, and a step writes no further than the drafts that it verifies.
    let sliding = plan.sliding().map_or(SlidingNeeds::default(), |(window, bytes)| {
        Sliding { window, block_tokens }.needs(bytes, context, plan.drafts(), plan.buckets.tokens)
    });
    let blocks = sliding.room(sequences, false).beside(memory.kv_block, left);
    StartReport {
        sequences,
        fixed,
        left,
        kv_tokens: (memory.kv_block > 0).then_some(blocks * block_tokens as u64),
        context,
    }
}

/// The report as text; nothing on a CPU.
pub fn text(plan: &Plan) -> Vec<String> {
    let Some(report) = report(plan) else { return Vec::new() };
    let hardware = &plan.target.hardware;
    let mut lines = vec!["one token of one sequence        bytes".to_owned()];
    for (class, bytes) in &report.weights {
        lines.push(format!("  {:<24} {bytes:>12.0}", format!("weights: {class}")));
    }
    if report.state > 0.0 {
        lines.push(format!("  {:<24} {:>12.0}  read and written", "recurrent state", report.state));
    }
    for it in &report.contexts {
        lines.push(format!("  {:<24} {:>12.0}", format!("k/v after {}", it.context), it.kv));
    }
    lines.push(String::new());
    for LayerReport { name, layers, phases, boundaries } in &report.layers {
        lines.push(format!("{name}: {phases} phases in {boundaries} launches, {layers} layers"));
    }
    lines.push(format!(
        "{} boundaries of {:.2} us (boundary_seconds): {:.0} us; decoding nvfp4 at {:.2} TB/s (nvfp4_rate): {:.0} us more than reading it",
        report.boundaries,
        1e6 * hardware.boundary_seconds,
        report.boundary_microseconds,
        hardware.cuda().map_or(0.0, |cuda| cuda.nvfp4_rate) / 1e12,
        report.decoding_microseconds,
    ));
    lines.push(String::new());
    lines.push("after tokens        bytes    limit tok/s  predicted  of limit".to_owned());
    for it in &report.contexts {
        let part = 100.0 * it.predicted / it.limit;
        let ContextReport { context, bytes, limit, predicted, .. } = it;
        lines.push(format!("{context:<12} {bytes:>12.0} {limit:>14.1} {predicted:>10.1} {part:>7.0} %"));
    }
    let StartReport { sequences, fixed, left, kv_tokens, context } = &report.start;
    let kv = kv_tokens.map_or("no k/v".to_owned(), |tokens| format!("{tokens} tokens of k/v"));
    lines.push(String::new());
    lines.push(format!(
        "at start: {fixed} bytes of weights, state of {sequences} sequences, activations and scratch; {left} left of {:.0} % of the \
         memory: {kv}, and a sequence is of {context} at most",
        100.0 * MEMORY_FRACTION
    ));
    lines
}

//! Puts the passes' results together as a plan.

use super::fuse::{Fused, Group};
use super::layout::{Layout, Uses};
use super::memory::Assignment;
use super::{PassError, buckets, fuse, layout, memory, pass_error, rules};
use crate::graph::{Body, BodyId, Graph, Op, Rows};
use crate::plan::{
    BufferId, Cost, Field, FieldId, FieldKind, Memory, Phase, PhaseKind, Plan, PlanBody, Prediction,
};
use crate::spec;
use crate::spec::types::{Compute, HardwareKind, Target};

/// The CPU backend's fusion table.
const CPU_RULES: &str = include_str!("../../../templates/rust/cpu.rules");

/// Plans `graph` for `target`.
///
/// # Errors
/// When the backend's rules do not cover the graph, or a phase cannot take its shapes.
pub fn plan(target: &Target, graph: &Graph) -> Result<Plan, PassError> {
    let table = match target.hardware.kind {
        HardwareKind::Cpu(_) => CPU_RULES,
    };
    let fused = fuse::fuse(graph, &rules::parse(table)?)?;
    let layout = layout::layout(graph, &fused)?;
    let assignment = memory::assign(graph, &fused)?;
    let buckets = buckets::buckets(target);
    let bodies = bodies(target, graph, &fused, &layout, &assignment)?;
    let kv_block = spec::kv_block_bytes(&target.model, &target.quant);
    let mut plan = Plan {
        target: target.clone(),
        buckets,
        buffers: assignment.buffers,
        fields: layout.fields,
        bodies,
        schedule: graph.schedule.iter().map(|run| (run.body, run.layer)).collect(),
        memory: Memory { weights: 0, scratch: 0, kv_block: kv_block as u64 },
        prediction: Prediction::default(),
    };
    plan.memory.weights = plan.fields.iter().map(|field| field.bytes() * plan.instances(field) as u64).sum();
    plan.memory.scratch = plan
        .buffers
        .iter()
        .map(|buffer| {
            let rows = match buffer.rows {
                Rows::Tokens => buckets.tokens,
                Rows::Outputs => buckets.sequences,
            };
            4 * (rows * buffer.width) as u64
        })
        .sum();
    plan.prediction = predict(&plan);
    Ok(plan)
}

fn bodies(
    target: &Target,
    graph: &Graph,
    fused: &Fused,
    layout: &Layout,
    assignment: &Assignment,
) -> Result<Vec<PlanBody>, PassError> {
    let body = |(index, groups): (usize, &Vec<Group>)| {
        let id = BodyId(index);
        let body = &graph.bodies[index];
        let mut phases: Vec<Phase> = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            let lowering =
                Lowering { body, group, uses: &layout.uses[&(id, at)], slices: &assignment.slices[index] };
            let kind = lowering.kind()?;
            let waits_for = waits_for(&phases, &kind);
            let costs = |tokens, context| cost(target, layout, assignment, &kind, tokens, context);
            phases.push(Phase {
                name: phase_name(&kind, layout, &phases),
                ops: group.nodes.iter().map(|node| body.nodes[node.0].op.name()).collect(),
                waits_for,
                decode: costs(1, Prediction::DECODE_CONTEXT),
                prefill: costs(Prediction::PREFILL_TOKENS, 0),
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
    let name = match kind {
        PhaseKind::Project { matrix, .. }
        | PhaseKind::Accumulate { matrix, .. }
        | PhaseKind::Gated { matrix, .. } => layout.fields[matrix.0].name.clone(),
        _ => kind.name().to_owned(),
    };
    debug_assert!(earlier.iter().all(|phase| phase.name != name), "phase names are unique in a body");
    name
}

/// The latest earlier writer of each buffer read, and readers and writers of the buffer written.
fn waits_for(earlier: &[Phase], kind: &PhaseKind) -> Vec<usize> {
    let (reads, writes) = kind.buffers();
    let conflicts = |phase: &Phase| {
        let (their_reads, their_writes) = phase.kind.buffers();
        reads.contains(&their_writes) || their_writes == writes || their_reads.contains(&writes)
    };
    (0..earlier.len()).filter(|i| conflicts(&earlier[*i])).collect()
}

/// One group on its way to a phase kind.
struct Lowering<'a> {
    body: &'a Body,
    group: &'a Group,
    uses: &'a Uses,
    slices: &'a std::collections::BTreeMap<crate::graph::ValueId, memory::Slice>,
}

impl Lowering<'_> {
    fn kind(&self) -> Result<PhaseKind, PassError> {
        let kind = match self.group.kind.as_str() {
            "embed" => PhaseKind::Embed { table: self.matrix(), out: self.whole("out")? },
            "project" | "head" => PhaseKind::Project {
                x: self.whole("x")?,
                norm: norm(self.uses.norm),
                matrix: self.matrix(),
                bias: self.uses.bias,
                out: self.whole(if self.group.kind == "head" { "out" } else { "q" })?,
            },
            "attention" | "attention-normed" => self.attention()?,
            "accumulate" => PhaseKind::Accumulate {
                x: self.whole("x")?,
                matrix: self.matrix(),
                bias: self.uses.bias,
                residual: self.whole("residual")?,
            },
            "gated" => {
                let Op::Gate { activation } = self.op("out") else { unreachable!("the rule says gate") };
                PhaseKind::Gated {
                    x: self.whole("x")?,
                    norm: norm(self.uses.norm),
                    matrix: self.matrix(),
                    biases: self.uses.bias.zip(self.uses.up_bias),
                    activation: *activation,
                    out: self.whole("out")?,
                }
            }
            "select" => PhaseKind::Select { x: self.whole("x")?, out: self.whole("out")? },
            other => return Err(pass_error!("the CPU backend has no phase kind `{other}`")),
        };
        Ok(kind)
    }

    fn attention(&self) -> Result<PhaseKind, PassError> {
        let Op::Attention { heads, kv_heads, head_dim, scale } = *self.op("out") else {
            unreachable!("the rule says attention")
        };
        let (Op::Rotary { frequencies, .. }, Op::Rotary { frequencies: of_keys, .. }) =
            (self.op("qr"), self.op("kr"))
        else {
            unreachable!("the rule says rotary")
        };
        if frequencies != of_keys {
            return Err(pass_error!("q and k of `{}` turn by different angles", self.body.name));
        }
        let qkv = self.whole("q")?;
        let slice = |name: &str| self.slices[&self.group.value(name)];
        let expected = [("k", heads * head_dim), ("v", (heads + kv_heads) * head_dim)];
        if expected.iter().any(|(name, column)| slice(name) != memory::Slice { buffer: qkv, column: *column })
        {
            return Err(pass_error!("q, k and v of `{}` do not stand side by side", self.body.name));
        }
        let normed = self.group.kind == "attention-normed";
        Ok(PhaseKind::Attention {
            qkv,
            q_norm: normed.then(|| norm(self.uses.q_norm)),
            k_norm: normed.then(|| norm(self.uses.k_norm)),
            frequencies: frequencies.clone(),
            heads,
            kv_heads,
            head_dim,
            scale,
            out: self.whole("out")?,
        })
    }

    fn op(&self, value: &str) -> &Op {
        let producer = self.body.producer(self.group.value(value)).expect("a value of the pattern");
        &self.body.nodes[producer.0].op
    }

    fn matrix(&self) -> FieldId {
        self.uses.matrix.expect("layout gives every product a matrix")
    }

    /// The buffer a value begins.
    fn whole(&self, value: &str) -> Result<BufferId, PassError> {
        let slice = self.slices[&self.group.value(value)];
        if slice.column != 0 {
            return Err(pass_error!("`{value}` of `{}` does not begin its buffer", self.group.kind));
        }
        Ok(slice.buffer)
    }
}

fn norm(field: Option<FieldId>) -> FieldId {
    field.expect("layout gives every norm its weights")
}

/// Work of a phase for `tokens` tokens that follow `context` others in their sequence.
fn cost(
    target: &Target,
    layout: &Layout,
    assignment: &Assignment,
    kind: &PhaseKind,
    tokens: usize,
    context: usize,
) -> Cost {
    // Logits are computed after the last token only.
    let rows = |buffer: BufferId| match assignment.buffers[buffer.0].rows {
        Rows::Tokens => tokens,
        Rows::Outputs => 1,
    };
    let (mut read, written) = kind.buffers();
    read.push(written);
    let activation_bytes =
        read.iter().map(|id| 4 * rows(*id) * assignment.buffers[id.0].width).sum::<usize>();
    let mut cost = Cost { activation_bytes: activation_bytes as f64, ..Cost::default() };
    match kind {
        PhaseKind::Embed { table, .. } => {
            let FieldKind::Matrix { format, columns, .. } = layout.fields[table.0].kind else { return cost };
            cost.weight_bytes = (tokens * format.bytes(columns).unwrap_or(0)) as f64;
        }
        PhaseKind::Attention { heads, kv_heads, head_dim, .. } => {
            let element = target.quant.kv_format.block_bytes();
            // Each tile of queries reads the cache once; a step's tokens write it once.
            cost.kv_bytes = ((context + tokens) * 2 * kv_heads * head_dim * element) as f64;
            let pairs = tokens * context + tokens * (tokens + 1) / 2;
            cost.f32_products = (2 * pairs * heads * head_dim) as f64;
        }
        PhaseKind::Project { matrix, out, .. } => product(&layout.fields[matrix.0], rows(*out), &mut cost),
        PhaseKind::Accumulate { matrix, .. } | PhaseKind::Gated { matrix, .. } => {
            product(&layout.fields[matrix.0], tokens, &mut cost);
        }
        PhaseKind::Select { .. } => {}
    }
    cost
}

fn product(field: &Field, rows: usize, cost: &mut Cost) {
    let FieldKind::Matrix { compute, rows: outputs, columns, .. } = field.kind else { return };
    cost.weight_bytes = field.bytes() as f64;
    let products = (rows * outputs * columns) as f64;
    match compute {
        Compute::F32 => cost.f32_products = products,
        Compute::Int8Block32 => cost.int8_products = products,
    }
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

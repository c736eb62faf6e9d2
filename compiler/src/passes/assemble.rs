//! Puts the passes' results together as a plan.

use super::fuse::{Fused, Group};
use super::layout::{Layout, Uses};
use super::memory::Assignment;
use super::{PassError, buckets, draft, fuse, launch, layout, memory, pass_error, precision, rules};
use crate::blocks;
use crate::graph::{Body, BodyId, Graph, Op};
use crate::plan::{
    BufferId, Cost, FieldId, Given, Memory, Phase, PhaseKind, Plan, PlanBody, Prediction, SharedDown,
    SharedUp, Work,
};
use crate::spec;
use crate::spec::types::{HardwareKind, Target};

/// The CPU backend's fusion table.
const CPU_RULES: &str = include_str!("../../../templates/rust/cpu.rules");
/// The CUDA backend's.
const CUDA_RULES: &str = include_str!("../../../templates/cuda/cuda.rules");

/// Plans `graph` for `target`.
///
/// # Errors
/// When the backend's rules do not cover the graph, or a phase cannot take its shapes.
pub fn plan(target: &Target, graph: &Graph) -> Result<Plan, PassError> {
    let table = match target.hardware.kind {
        HardwareKind::Cpu(_) => {
            precision::cpu(graph, target.draft.is_some_and(|draft| draft.has_head()))?;
            CPU_RULES
        }
        HardwareKind::Cuda(_) => CUDA_RULES,
    };
    let (graph, draft) = draft::bodies(target, graph)?;
    let fused = fuse::fuse(&graph, &rules::parse(table)?)?;
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
    let final_norm = head_groups.filter_map(|at| layout.uses[&(model_head, at)].norm).next_back();
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

/// One group on its way to a phase kind.
struct Lowering<'a> {
    body: &'a Body,
    group: &'a Group,
    uses: &'a Uses,
    slices: &'a std::collections::BTreeMap<crate::graph::ValueId, memory::Slice>,
    /// The norm of the model's head.
    final_norm: Option<FieldId>,
    /// Whether only draft passes run the body.
    in_draft: bool,
}

impl Lowering<'_> {
    fn kind(&self) -> Result<PhaseKind, PassError> {
        let kind = match self.group.kind.as_str() {
            "embed" => PhaseKind::Embed(blocks::Embed { table: self.matrix(), out: self.whole("out")? }),
            "head" if self.in_draft => PhaseKind::Propose(blocks::Propose {
                x: self.whole("x")?,
                norm: norm(self.uses.norm),
                matrix: self.matrix(),
                out: self.whole("out")?,
            }),
            "draft-embed" => PhaseKind::DraftEmbed(blocks::DraftEmbed {
                x: self.whole("h")?,
                norm: norm(self.final_norm),
                hidden_norm: norm(self.uses.norm),
                table: self.matrix(),
                embedding_norm: norm(self.uses.embedding_norm),
                out: self.whole("out")?,
            }),
            "linear" => PhaseKind::Linear(blocks::Linear {
                x: self.whole("x")?,
                matrix: self.matrix(),
                out: self.whole("out")?,
            }),
            "project" | "project-gated" | "head" => PhaseKind::Project(blocks::Project {
                x: self.whole("x")?,
                norm: norm(self.uses.norm),
                matrix: self.matrix(),
                bias: self.uses.bias,
                out: self.whole(if self.group.kind == "head" { "out" } else { "q" })?,
            }),
            "attention" | "attention-normed" | "attention-gated" => self.attention()?,
            "project-delta" => PhaseKind::ProjectDelta(blocks::ProjectDelta {
                x: self.whole("x")?,
                norm: norm(self.uses.norm),
                matrix: self.matrix(),
                gates: self.uses.gates.expect("layout gives b and a a matrix"),
                out: self.whole("q")?,
                gates_out: self.whole("b")?,
            }),
            "delta" => self.delta()?,
            "experts" | "experts-shared" => self.experts()?,
            "combine" | "combine-shared" => self.combine()?,
            "accumulate" => PhaseKind::Accumulate(blocks::Accumulate {
                x: self.whole("x")?,
                matrix: self.matrix(),
                bias: self.uses.bias,
                residual: self.whole("residual")?,
            }),
            "gated" => {
                let Op::Gate { activation } = self.op("out") else { unreachable!("the rule says gate") };
                PhaseKind::Gated(blocks::Gated {
                    x: self.whole("x")?,
                    norm: norm(self.uses.norm),
                    matrix: self.matrix(),
                    biases: self.uses.bias.zip(self.uses.up_bias),
                    activation: *activation,
                    out: self.whole("out")?,
                })
            }
            "select" => PhaseKind::Select(blocks::Select { x: self.whole("x")?, out: self.whole("out")? }),
            other => return Err(pass_error!("this backend has no phase kind `{other}`")),
        };
        Ok(kind)
    }

    fn attention(&self) -> Result<PhaseKind, PassError> {
        let context = if self.group.kind == "attention-gated" { "c" } else { "out" };
        let Op::Attention { heads, kv_heads, head_dim, scale } = *self.op(context) else {
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
        let gated = self.group.kind == "attention-gated";
        let queries = heads * head_dim * if gated { 2 } else { 1 };
        let mut expected = vec![("k", queries), ("v", queries + kv_heads * head_dim)];
        expected.extend(gated.then_some(("g", heads * head_dim)));
        if expected.iter().any(|(name, column)| slice(name) != memory::Slice { buffer: qkv, column: *column })
        {
            return Err(pass_error!("q, k and v of `{}` do not stand side by side", self.body.name));
        }
        let normed = self.group.kind != "attention";
        Ok(PhaseKind::Attention(blocks::Attention {
            qkv,
            gated,
            q_norm: normed.then(|| norm(self.uses.q_norm)),
            k_norm: normed.then(|| norm(self.uses.k_norm)),
            frequencies: frequencies.clone(),
            heads,
            kv_heads,
            head_dim,
            scale,
            out: self.whole("out")?,
        }))
    }

    fn delta(&self) -> Result<PhaseKind, PassError> {
        let Op::DeltaNet { shape, .. } = *self.op("r") else { unreachable!("the rule says delta-net") };
        let Op::Gate { activation } = *self.op("out") else { unreachable!("the rule says gate") };
        let (qkvz, ba) = (self.whole("q")?, self.whole("b")?);
        let (keys, values) = (shape.key_width(), shape.value_width());
        let expected = [
            ("k", qkvz, keys),
            ("v", qkvz, 2 * keys),
            ("z", qkvz, 2 * keys + values),
            ("a", ba, shape.value_heads),
        ];
        let stands = |(name, buffer, column): &(&str, BufferId, usize)| {
            self.slices[&self.group.value(name)] == memory::Slice { buffer: *buffer, column: *column }
        };
        if !expected.iter().all(stands) {
            return Err(pass_error!("the inputs of `{}` do not stand side by side", self.body.name));
        }
        let [convolution, a_log, dt_bias] = self.uses.delta.expect("layout gives a delta-net its vectors");
        Ok(PhaseKind::Delta(blocks::Delta {
            qkvz,
            ba,
            convolution,
            a_log,
            dt_bias,
            norm: norm(self.uses.norm),
            activation,
            shape,
            out: self.whole("out")?,
        }))
    }

    fn experts(&self) -> Result<PhaseKind, PassError> {
        let Op::Route { active, renormalise, .. } = *self.op("r") else {
            unreachable!("the rule says route")
        };
        let Op::ExpertGate { activation, .. } = *self.op("out") else {
            unreachable!("the rule says expert-gate")
        };
        let shared = (self.group.kind == "experts-shared").then(|| {
            let Op::Gate { activation: of_shared } = *self.op("c") else {
                unreachable!("the rule says gate")
            };
            if of_shared != activation {
                return Err(pass_error!("the experts of `{}` have two activations", self.body.name));
            }
            Ok(SharedUp {
                matrix: self.uses.shared.expect("layout gives the shared expert a matrix"),
                out: self.whole("c")?,
            })
        });
        Ok(PhaseKind::Experts(blocks::Experts {
            x: self.whole("x")?,
            norm: norm(self.uses.norm),
            router: self.uses.router.expect("layout gives every router a matrix"),
            logits: self.whole("l")?,
            routing: self.whole("r")?,
            matrix: self.matrix(),
            active,
            renormalise,
            activation,
            out: self.whole("out")?,
            shared: shared.transpose()?,
        }))
    }

    fn combine(&self) -> Result<PhaseKind, PassError> {
        let Op::ExpertDown { active, .. } = *self.op("y") else { unreachable!("the rule says expert-down") };
        let shared = (self.group.kind == "combine-shared").then(|| {
            Ok(SharedDown {
                inner: self.whole("c")?,
                logits: self.slices[&self.group.value("s")].buffer,
                matrix: self.uses.shared.expect("layout gives the shared expert a matrix"),
                product: self.whole("d")?,
            })
        });
        Ok(PhaseKind::Combine(blocks::Combine {
            inner: self.whole("i")?,
            routing: self.whole("r")?,
            matrix: self.matrix(),
            active,
            shared: shared.transpose()?,
            residual: self.whole("residual")?,
        }))
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

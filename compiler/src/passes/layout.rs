//! How the weights of each group stand in memory: which tensors are stacked into one matrix, and in what
//! order.

use super::fuse::{Fused, Group};
use super::{PassError, pass_error};
use crate::graph::{Body, BodyId, Graph, Op, Weight, WeightId};
use crate::plan::{Field, FieldId, FieldKind, Packing, Part};
use std::collections::BTreeMap;

/// The fields of the generated structs, and which group reads which.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// All fields.
    pub fields: Vec<Field>,
    /// By body and group: the rule's value names to the fields that make them. Products fused into one
    /// matrix map to the same field.
    pub uses: BTreeMap<(BodyId, usize), Uses>,
}

/// The fields one group reads.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// The norm before a product.
    pub norm: Option<FieldId>,
    /// The norm of embeddings where a draft begins.
    pub embedding_norm: Option<FieldId>,
    /// Norm of each query head.
    pub q_norm: Option<FieldId>,
    /// Norm of each key head.
    pub k_norm: Option<FieldId>,
    /// The matrix.
    pub matrix: Option<FieldId>,
    /// Its bias, or gate's.
    pub bias: Option<FieldId>,
    /// Up's bias, where the matrix holds gate and up.
    pub up_bias: Option<FieldId>,
    /// b and a of a delta-net.
    pub gates: Option<FieldId>,
    /// Convolution, `a_log` and `dt_bias` of a delta-net.
    pub delta: Option<[FieldId; 3]>,
    /// The router of experts, and below it what weighs the shared expert.
    pub router: Option<FieldId>,
    /// The shared expert's gate and up, or down.
    pub shared: Option<FieldId>,
}

/// What of a group's products stands where. A value of the rule is the product of its own matrix.
fn places(kind: &str) -> &'static [(Place, &'static [&'static str])] {
    match kind {
        "project-delta" => &[(Place::Matrix, &["q", "k", "v", "z"]), (Place::Gates, &["b", "a"])],
        "experts" => &[(Place::Router, &["l"])],
        "experts-shared" => &[(Place::Router, &["l", "s"]), (Place::Shared, &["g", "u"])],
        "combine-shared" => &[(Place::Shared, &["d"])],
        _ => &[],
    }
}

/// A member of [`Uses`].
#[derive(Clone, Copy)]
enum Place {
    Matrix,
    Gates,
    Router,
    Shared,
}

/// Lays out the weights of every group.
///
/// # Errors
/// When products of one group cannot share a matrix: formats differ, or only some have a bias.
pub fn layout(graph: &Graph, fused: &Fused) -> Result<Layout, PassError> {
    let mut layout = Layout::default();
    for (body_index, groups) in fused.bodies.iter().enumerate() {
        let body = BodyId(body_index);
        for (group_index, group) in groups.iter().enumerate() {
            let uses = layout.group(graph, body, group)?;
            layout.uses.insert((body, group_index), uses);
        }
    }
    Ok(layout)
}

impl Layout {
    fn group(&mut self, graph: &Graph, body_id: BodyId, group: &Group) -> Result<Uses, PassError> {
        let body = &graph.bodies[body_id.0];
        let mut uses = Uses::default();
        let mut products: Vec<(WeightId, Option<WeightId>)> = Vec::new();
        for id in &group.nodes {
            match &body.nodes[id.0].op {
                Op::Embedding { table } => products.push((*table, None)),
                Op::Linear { weight, bias } => products.push((*weight, *bias)),
                Op::RmsNorm { weight, eps, form, .. } => {
                    let Weight { stored, rows, .. } = graph.weights[weight.0];
                    let kind = FieldKind::Norm { format: stored, length: rows, eps: *eps, form: *form };
                    let field = Some(self.field(graph, body_id, &[*weight], kind));
                    let value = body.nodes[id.0].output;
                    match group.values.iter().find(|(_, v)| **v == value).map(|(name, _)| name.as_str()) {
                        Some("qn") => uses.q_norm = field,
                        Some("kn") => uses.k_norm = field,
                        Some("m") => uses.embedding_norm = field,
                        _ => uses.norm = field,
                    }
                }
                Op::DeltaNet { convolution, a_log, dt_bias, .. } => {
                    let Weight { stored, rows, columns, .. } = graph.weights[convolution.0];
                    let kind = FieldKind::Convolution { format: stored, channels: rows, taps: columns };
                    let convolution = self.field(graph, body_id, &[*convolution], kind);
                    let [a_log, dt_bias] = [a_log, dt_bias].map(|it| self.vector(graph, body_id, &[*it]));
                    uses.delta = Some([convolution, a_log, dt_bias]);
                }
                Op::ExpertGate { gate, up, .. } => {
                    uses.matrix = Some(self.matrix(graph, body_id, body, &[*gate, *up], Packing::Gated)?);
                }
                Op::ExpertDown { down, .. } => {
                    uses.matrix = Some(self.matrix(graph, body_id, body, &[*down], Packing::Stacked)?);
                }
                Op::Rotary { .. }
                | Op::Attention { .. }
                | Op::SigmoidGate
                | Op::Route { .. }
                | Op::Gate { .. }
                | Op::Concat
                | Op::Add
                | Op::Select => {}
            }
        }
        let own = places(&group.kind);
        for (place, values) in own {
            let weight = |name: &&str| {
                let producer = body.producer(group.value(name)).expect("a value of the pattern");
                body.nodes[producer.0].op.weights()[0]
            };
            let weights: Vec<WeightId> = values.iter().map(weight).collect();
            let gated = matches!(place, Place::Shared) && weights.len() == 2;
            let packing = if gated { Packing::Gated } else { Packing::Stacked };
            let field = Some(self.matrix(graph, body_id, body, &weights, packing)?);
            match place {
                Place::Matrix => uses.matrix = field,
                Place::Gates => uses.gates = field,
                Place::Router => uses.router = field,
                Place::Shared => uses.shared = field,
            }
        }
        if !own.is_empty() {
            return Ok(uses);
        }
        if products.is_empty() {
            return Ok(uses);
        }
        let weights: Vec<WeightId> = products.iter().map(|(weight, _)| *weight).collect();
        let packing = if group.kind == "gated" { Packing::Gated } else { Packing::Stacked };
        uses.matrix = Some(self.matrix(graph, body_id, body, &weights, packing)?);
        let biases: Vec<WeightId> = products.iter().filter_map(|(_, bias)| *bias).collect();
        if !biases.is_empty() {
            if biases.len() != products.len() {
                return Err(pass_error!(
                    "only some products of `{}` in `{}` have a bias",
                    group.kind,
                    body.name
                ));
            }
            if packing == Packing::Gated {
                uses.bias = Some(self.vector(graph, body_id, &biases[..1]));
                uses.up_bias = Some(self.vector(graph, body_id, &biases[1..]));
            } else {
                uses.bias = Some(self.vector(graph, body_id, &biases));
            }
        }
        Ok(uses)
    }

    fn matrix(
        &mut self,
        graph: &Graph,
        body_id: BodyId,
        body: &Body,
        weights: &[WeightId],
        packing: Packing,
    ) -> Result<FieldId, PassError> {
        let first = &graph.weights[weights[0].0];
        for other in weights.iter().map(|id| &graph.weights[id.0]) {
            let form = |it: &Weight| it.scales.as_ref().map(|it| it.form);
            let key = |it: &Weight| (it.stored, it.compute, it.columns, it.experts, form(it));
            let (a, b) = (key(first), key(other));
            if a != b {
                return Err(pass_error!(
                    "`{}` and `{}` are fused in `{}` and cannot be: {a:?} against {b:?}",
                    first.name,
                    other.name,
                    body.name
                ));
            }
        }
        let kind = FieldKind::Matrix {
            format: first.stored,
            scales: first.scales.as_ref().map(|scales| scales.form),
            compute: first.compute,
            rows: weights.iter().map(|id| graph.weights[id.0].rows).sum(),
            columns: first.columns,
            packing,
            experts: first.experts,
        };
        Ok(self.field(graph, body_id, weights, kind))
    }

    fn vector(&mut self, graph: &Graph, body: BodyId, weights: &[WeightId]) -> FieldId {
        let length = weights.iter().map(|id| graph.weights[id.0].rows).sum();
        let format = graph.weights[weights[0].0].stored;
        self.field(graph, body, weights, FieldKind::Vector { format, length })
    }

    /// The field of these weights, made at first use: the tied head finds the embedding's.
    fn field(&mut self, graph: &Graph, body: BodyId, weights: &[WeightId], kind: FieldKind) -> FieldId {
        let in_layer = graph.weights[weights[0].0].name.contains("{layer}");
        let parts: Vec<Part> = weights.iter().map(|weight| Part::new(graph, *weight)).collect();
        let owner = in_layer.then_some(body);
        if let Some(known) = self.fields.iter().position(|field| field.owner == owner && field.parts == parts)
        {
            return FieldId(known);
        }
        let name = field_name(&parts.iter().map(|part| part.weight.as_str()).collect::<Vec<_>>());
        self.fields.push(Field { name, owner, kind, parts });
        FieldId(self.fields.len() - 1)
    }
}

/// `layers.{layer}.attention.{q,k,v}` becomes `attention_qkv`, `ffn.{gate,up}` `ffn_gate_up`.
fn field_name(weights: &[&str]) -> String {
    let stripped: Vec<&str> = weights.iter().map(|name| name.trim_start_matches("layers.{layer}.")).collect();
    let stripped: Vec<String> = stripped.iter().map(|name| name.replace("{expert}.", "")).collect();
    let (stem, bias) = match stripped[0].strip_suffix(".bias") {
        Some(stem) => (stem, "_bias"),
        None => (stripped[0].as_str(), ""),
    };
    let Some((prefix, first)) = stem.rsplit_once('.') else {
        return format!("{}{bias}", stem.replace('.', "_"));
    };
    let leaf = |name: &String| {
        let name = name.strip_suffix(".bias").unwrap_or(name);
        name.rsplit('.').next().unwrap_or(name).to_owned()
    };
    let leaves: Vec<String> = stripped.iter().map(leaf).collect();
    let joint = if leaves.iter().all(|leaf| leaf.len() == 1) { "" } else { "_" };
    let leaves = if leaves.len() == 1 { first.to_owned() } else { leaves.join(joint) };
    format!("{}_{leaves}{bias}", prefix.replace('.', "_"))
}

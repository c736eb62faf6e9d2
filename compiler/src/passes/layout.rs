//! The layout of each group's weights: which tensors are stacked into one matrix, and in what order.

use super::fuse::Fused;
use super::lower::{Group, Uses};
use super::{PassError, pass_error};
use crate::blocks::FieldForm;
use crate::graph::{Body, BodyId, Graph, Op, ValueId, Weight, WeightId};
use crate::plan::{Field, FieldId, FieldKind, Packing, TensorPart};
use crate::spec::types::{Compute, HardwareKind};
use monomorph_abi::VECTOR;
use monomorph_formats::{Format, ScaleForm};
use std::collections::BTreeMap;

/// The fields of the generated structs, and the groups that read them.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// All fields.
    pub fields: Vec<Field>,
    /// Fields by body and group, under the rule's names for values. Products fused into one matrix map to the
    /// same field.
    pub uses: BTreeMap<(BodyId, usize), Uses>,
    /// Whether it is a CPU's: heads' matrices have a form of their own ([`FieldKind::Heads`]), and products
    /// side by side, or of a gate and what it gates, need not share a matrix.
    on_cpu: bool,
}

/// Lays out the weights of every group.
///
/// # Errors
/// When products of one group cannot share a matrix: formats differ, or only some have a bias; and when they
/// need not, but one ends within a vector.
pub fn layout(graph: &Graph, fused: &Fused, hardware: &HardwareKind) -> Result<Layout, PassError> {
    let on_cpu = matches!(hardware, HardwareKind::Cpu(_));
    let mut layout = Layout { on_cpu, ..Layout::default() };
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
        let names = |value: ValueId| {
            let names = group.values.iter().filter(move |(_, it)| **it == value);
            names.map(|(name, _)| name.clone())
        };
        let mut uses = Uses::default();
        for id in &group.nodes {
            match &body.nodes[id.0].op {
                Op::RmsNorm { weight, eps, form, .. } => {
                    let Weight { stored, rows, .. } = graph.weights[weight.0];
                    let kind = FieldKind::Norm { format: stored, length: rows, eps: *eps, form: *form };
                    let field = self.field(graph, body_id, &[*weight], kind);
                    uses.norms.extend(names(body.nodes[id.0].output).map(|name| (name, field)));
                }
                Op::ScaleBy { weight } => {
                    let field = self.vector(graph, body_id, &[*weight]);
                    uses.own.extend(names(body.nodes[id.0].output).map(|name| (name, vec![field])));
                }
                Op::Block(op) => {
                    let fields = op.fields().into_iter();
                    let fields: Vec<FieldId> = fields.map(|it| self.own(graph, body_id, it)).collect();
                    let names = names(body.nodes[id.0].output);
                    uses.own.extend(names.map(|name| (name, fields.clone())));
                }
                _ => {}
            }
        }
        for (values, packing) in group.fusion.matrices {
            self.products(graph, body_id, group, (values, *packing), &mut uses)?;
        }
        Ok(uses)
    }

    /// The matrix that some products of a group share, and their biases.
    fn products(
        &mut self,
        graph: &Graph,
        body_id: BodyId,
        group: &Group,
        (values, packing): (&[&'static str], Packing),
        uses: &mut Uses,
    ) -> Result<(), PassError> {
        let body = &graph.bodies[body_id.0];
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for value in values {
            let producer = body.producer(group.value(value)).expect("a value of the pattern");
            match &body.nodes[producer.0].op {
                Op::Linear { weight, bias } => {
                    weights.push(*weight);
                    biases.extend(*bias);
                }
                other => weights.extend(other.weights()),
            }
        }
        if !biases.is_empty() && biases.len() != weights.len() {
            let (rule, body) = (group.fusion.name, &body.name);
            return Err(pass_error!("only some products of `{rule}` in `{body}` have a bias"));
        }
        // On a CPU those of each format are a matrix of their own.
        let alike = |a: &WeightId, b: &WeightId| {
            !self.on_cpu || format_of(&graph.weights[a.0]) == format_of(&graph.weights[b.0])
        };
        let parts: Vec<&[WeightId]> = weights.chunk_by(alike).collect();
        match (packing, &parts[..]) {
            (Packing::Gated, [gate, up]) => {
                let [gate, up] = [gate, up].map(|weights| {
                    self.field(graph, body_id, weights, stacked(graph, weights, Packing::Stacked))
                });
                uses.matrices
                    .extend(values.iter().zip([gate, up]).map(|(name, it)| ((*name).to_owned(), it)));
                uses.ups.insert(values[0].to_owned(), up);
            }
            (_, parts) => {
                vectors_are_whole(graph, parts)?;
                let mut named = values.iter();
                for weights in parts {
                    let matrix = self.matrix(graph, body_id, body, weights, packing)?;
                    let named = named.by_ref().take(weights.len());
                    uses.matrices.extend(named.map(|value| ((*value).to_owned(), matrix)));
                }
            }
        }
        // Those of a matrix are one vector. Gate and up are interleaved in theirs; their biases are not.
        let together: Vec<usize> = match packing {
            Packing::Gated => vec![1; biases.len()],
            Packing::Stacked => parts.iter().map(|part| part.len()).collect(),
        };
        let mut at = 0;
        for count in together.into_iter().filter(|_| !biases.is_empty()) {
            let field = self.vector(graph, body_id, &biases[at..][..count]);
            uses.biases.extend(values[at..][..count].iter().map(|value| ((*value).to_owned(), field)));
            at += count;
        }
        Ok(())
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
            let (a, b) = (format_of(first), format_of(other));
            if a != b {
                return Err(pass_error!(
                    "`{}` and `{}` are fused in `{}` and cannot be: {a:?} against {b:?}",
                    first.name,
                    other.name,
                    body.name
                ));
            }
        }
        Ok(self.field(graph, body_id, weights, stacked(graph, weights, packing)))
    }

    /// The field of a weight that an op reads directly.
    fn own(&mut self, graph: &Graph, body: BodyId, (weight, form): (WeightId, FieldForm)) -> FieldId {
        match form {
            FieldForm::Vector => self.vector(graph, body, &[weight]),
            FieldForm::Table => {
                let mut kind = stacked(graph, &[weight], Packing::Stacked);
                if let FieldKind::Matrix { compute, .. } = &mut kind {
                    *compute = Compute::F32;
                }
                self.field(graph, body, &[weight], kind)
            }
            FieldForm::Convolution => {
                let Weight { stored, rows, columns, .. } = graph.weights[weight.0];
                let kind = FieldKind::Convolution { format: stored, channels: rows, taps: columns };
                self.field(graph, body, &[weight], kind)
            }
            FieldForm::Heads { .. } if !self.on_cpu => {
                self.field(graph, body, &[weight], stacked(graph, &[weight], Packing::Stacked))
            }
            FieldForm::Heads { heads, key_dim } => {
                let Weight { stored, rows, columns, .. } = graph.weights[weight.0];
                let value_dim = rows / heads - key_dim;
                let kind = FieldKind::Heads { format: stored, heads, key_dim, value_dim, latent: columns };
                self.field(graph, body, &[weight], kind)
            }
        }
    }

    fn vector(&mut self, graph: &Graph, body: BodyId, weights: &[WeightId]) -> FieldId {
        let length = weights.iter().map(|id| graph.weights[id.0].rows).sum();
        let format = graph.weights[weights[0].0].stored;
        self.field(graph, body, weights, FieldKind::Vector { format, length })
    }

    /// The field of these weights, created at first use: a tied head finds the embedding's.
    fn field(&mut self, graph: &Graph, body: BodyId, weights: &[WeightId], kind: FieldKind) -> FieldId {
        let in_layer = graph.weights[weights[0].0].name.contains("{layer}");
        let parts: Vec<TensorPart> = weights.iter().map(|weight| TensorPart::new(graph, *weight)).collect();
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

/// Refuses matrices side by side of which one ends within a vector: the next would begin there.
fn vectors_are_whole(graph: &Graph, parts: &[&[WeightId]]) -> Result<(), PassError> {
    for pair in parts.windows(2) {
        let rows: usize = pair[0].iter().map(|id| graph.weights[id.0].rows).sum();
        if !rows.is_multiple_of(VECTOR) {
            let [first, next] = [pair[0], pair[1]].map(|weights| &graph.weights[weights[0].0]);
            return Err(pass_error!(
                "`{}` is {} and `{}` is {}: products of several formats side by side need {VECTOR} rows or a \
                 multiple each, and the first have {rows}",
                first.name,
                first.stored,
                next.name,
                next.stored
            ));
        }
    }
    Ok(())
}

/// What weights have in common that share a matrix: formats, columns, experts.
fn format_of(weight: &Weight) -> (Format, Compute, usize, Option<usize>, Option<ScaleForm>) {
    let scales = weight.scales.as_ref().map(|scales| scales.form);
    (weight.stored, weight.compute, weight.columns, weight.experts, scales)
}

/// The matrix of these weights, which are alike.
fn stacked(graph: &Graph, weights: &[WeightId], packing: Packing) -> FieldKind {
    let first = &graph.weights[weights[0].0];
    FieldKind::Matrix {
        format: first.stored,
        scales: first.scales.as_ref().map(|scales| scales.form),
        compute: first.compute,
        rows: weights.iter().map(|id| graph.weights[id.0].rows).sum(),
        columns: first.columns,
        packing,
        experts: first.experts,
    }
}

/// Turns `layers.{layer}.ffn.{gate,up}` into `ffn_gate_up`; names of one letter are joined. Of a tower
/// `vision.layers` stays.
fn field_name(weights: &[&str]) -> String {
    let stripped: Vec<&str> = weights.iter().map(|name| name.trim_start_matches("layers.{layer}.")).collect();
    let stripped: Vec<String> =
        stripped.iter().map(|name| name.replace("{expert}.", "").replace("{layer}.", "")).collect();
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

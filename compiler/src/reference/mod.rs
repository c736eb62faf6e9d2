//! The oracle: runs a [`Graph`] in f32, slowly and plainly.
//!
//! Goldens made with transformers check this interpreter; it checks every backend and every pass. It is
//! never deleted and never optimised. What a quant spec declares it applies: weights are the stored format's
//! exact values, scales beside a tensor included, operands are rounded before a product as the weight's compute
//! format says, and keys and values are rounded to the K/V format. Sums are f64, so that its own rounding is not what a comparison sees.

mod ops;

use crate::graph::{BodyId, Graph, Node, Op, WeightId, instance};
use crate::spec::types::{CheckpointSpec, Quant, RotaryRows};
use monomorph_formats::Format;
use monomorph_weights::{Checkpoint, WeightsError};

/// A graph with its weights.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    kv_format: Format,
    /// By weight, then by instance (a layer, or the one).
    weights: Vec<Vec<Vec<f32>>>,
}

/// One sequence's keys and values, by layer: `[tokens, kv_heads * head_dim]`.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    layers: Vec<(Vec<f32>, Vec<f32>)>,
    tokens: usize,
}

/// Which rows' logits to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// After every token.
    All,
    /// After the last.
    Last,
}

impl<'a> Interpreter<'a> {
    /// Reads every weight of the graph as f32.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or format than the spec says.
    pub fn new(graph: &'a Graph, quant: &Quant, checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        let weights = (0..graph.weights.len())
            .map(|id| {
                let id = WeightId(id);
                instances(graph, id)
                    .into_iter()
                    .map(|layer| read(graph, id, layer, &quant.checkpoint, checkpoint))
                    .collect()
            })
            .collect::<Result<_, _>>()?;
        Ok(Interpreter { graph, kv_format: quant.kv_format, weights })
    }

    /// Feeds `tokens` after what `cache` holds; returns logits `[rows, vocabulary]`.
    pub fn forward(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Vec<f32> {
        let mut residual = Vec::new();
        for run in &self.graph.schedule {
            let body = &self.graph.bodies[run.body.0];
            let mut values: Vec<Vec<f32>> = vec![Vec::new(); body.values.len()];
            if let Some(input) = body.input {
                values[input.0] = std::mem::take(&mut residual);
            }
            for node in &body.nodes {
                values[node.output.0] = self.node(run.body, run.layer, node, &values, tokens, cache, logits);
            }
            residual = std::mem::take(&mut values[body.output.0]);
        }
        cache.tokens += tokens.len();
        residual
    }

    #[expect(clippy::too_many_arguments, reason = "the interpreter's whole state, passed plainly")]
    fn node(
        &self,
        body: BodyId,
        layer: Option<usize>,
        node: &Node,
        values: &[Vec<f32>],
        tokens: &[u32],
        cache: &mut Cache,
        logits: Logits,
    ) -> Vec<f32> {
        let widths = &self.graph.bodies[body.0].values;
        let input = |i: usize| &values[node.inputs[i].0][..];
        let weight = |id: WeightId| &self.weights[id.0][layer_index(self.graph, id, layer)][..];
        match &node.op {
            Op::Embedding { table } => {
                ops::embedding(weight(*table), self.graph.weights[table.0].columns, tokens)
            }
            Op::RmsNorm { weight: w, eps, form, groups } => {
                ops::rms_norm(input(0), weight(*w), *eps, *form, widths[node.output.0].width / groups)
            }
            Op::Linear { weight: w, bias } => {
                ops::linear(input(0), &self.graph.weights[w.0], weight(*w), bias.map(weight))
            }
            Op::Rotary { heads, head_dim, frequencies } => {
                ops::rotary(input(0), *heads, *head_dim, frequencies, cache.tokens)
            }
            Op::Attention { heads, kv_heads, head_dim, scale } => {
                let layer = layer.expect("attention stands in a layer");
                if cache.layers.len() <= layer {
                    cache.layers.resize(layer + 1, Default::default());
                }
                let (keys, values) = &mut cache.layers[layer];
                keys.extend(ops::round(input(1), self.kv_format));
                values.extend(ops::round(input(2), self.kv_format));
                let shape = ops::Heads { heads: *heads, kv_heads: *kv_heads, head_dim: *head_dim };
                ops::attention(input(0), keys, values, shape, *scale, cache.tokens)
            }
            Op::Gate { activation } => ops::gate(input(0), input(1), *activation),
            Op::Add => input(0).iter().zip(input(1)).map(|(a, b)| a + b).collect(),
            Op::Select => {
                let width = widths[node.output.0].width;
                match logits {
                    Logits::All => input(0).to_vec(),
                    Logits::Last => input(0)[input(0).len() - width..].to_vec(),
                }
            }
        }
    }
}

/// The layers a weight exists in; `[None]` for one outside the layers.
fn instances(graph: &Graph, weight: WeightId) -> Vec<Option<usize>> {
    if !graph.weights[weight.0].name.contains("{layer}") {
        return vec![None];
    }
    let uses =
        |body: BodyId| graph.bodies[body.0].nodes.iter().any(|node| node.op.weights().contains(&weight));
    graph.schedule.iter().filter(|run| uses(run.body)).map(|run| run.layer).collect()
}

/// Where an instance stands in [`Interpreter::weights`].
fn layer_index(graph: &Graph, weight: WeightId, layer: Option<usize>) -> usize {
    let of_layer = graph.weights[weight.0].name.contains("{layer}").then_some(layer).flatten();
    instances(graph, weight).iter().position(|l| *l == of_layer).expect("a weight of this layer")
}

fn read(
    graph: &Graph,
    id: WeightId,
    layer: Option<usize>,
    spec: &CheckpointSpec,
    checkpoint: &Checkpoint,
) -> Result<Vec<f32>, WeightsError> {
    let weight = &graph.weights[id.0];
    let name = instance(&spec.names[&weight.name], layer);
    let shape = if weight.columns == 1 { vec![weight.rows] } else { vec![weight.rows, weight.columns] };
    let tensor = checkpoint.expect(&name, &shape, weight.stored)?;
    let mut values = vec![0.0; weight.elements()];
    monomorph_formats::decode(weight.stored, tensor.bytes, &mut values);
    if let Some(scales) = &weight.scales {
        let decoded = scales.companions.iter().map(|it| {
            let tensor = checkpoint.expect(&instance(&it.name, layer), &it.shape, it.format)?;
            let mut values = vec![0.0; it.shape.iter().product()];
            monomorph_formats::decode(it.format, tensor.bytes, &mut values);
            Ok(values)
        });
        let decoded = decoded.collect::<Result<Vec<_>, WeightsError>>()?;
        scales.form.apply(&mut values, weight.columns, &decoded);
    }
    Ok(match (spec.rotary_rows, graph.rotary_head_dim(id)) {
        (RotaryRows::Interleaved, Some(head_dim)) => {
            let rows = (0..weight.rows).map(|row| crate::graph::file_row(row, head_dim));
            rows.flat_map(|row| values[row * weight.columns..][..weight.columns].to_vec()).collect()
        }
        _ => values,
    })
}

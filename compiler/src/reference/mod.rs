//! The oracle: runs a [`Graph`] in f32, slowly and plainly.
//!
//! Goldens made with transformers check this interpreter; it checks every backend and every pass. It is never
//! deleted and never optimised. What a quant spec declares it applies: weights are the stored format's exact
//! values, scales beside a tensor included, operands are rounded before a product as the weight's compute
//! format says, and keys and values are rounded to the K/V format. Sums are f64, so that its own rounding is
//! not what a comparison sees.

mod delta;
mod draft;
mod experts;
mod ops;
mod weights;

use crate::graph::{Body, Graph, Node, Op, Run, ValueId, WeightId};
use crate::spec::types::Quant;
use monomorph_formats::Format;
use monomorph_weights::{Checkpoint, WeightsError};

/// A graph with its weights.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    kv_format: Format,
    /// By weight, then by instance (a layer, or the one), then by expert (or the one).
    weights: Vec<Vec<Vec<Vec<f32>>>>,
}

/// What one sequence has behind it, by layer; a draft head's is another than its model's.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    layers: Vec<LayerCache>,
    tokens: usize,
}

/// What a layer keeps of a sequence: the one or the other.
#[derive(Clone, Debug, Default)]
struct LayerCache {
    /// `[tokens, kv_heads * head_dim]`.
    keys: Vec<f32>,
    /// As the keys.
    values: Vec<f32>,
    delta: delta::State,
}

impl Cache {
    fn layer(&mut self, layer: Option<usize>) -> &mut LayerCache {
        let layer = layer.expect("what has a cache stands in a layer");
        if self.layers.len() <= layer {
            self.layers.resize(layer + 1, LayerCache::default());
        }
        &mut self.layers[layer]
    }
}

/// Which rows' logits to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// After every token.
    All,
    /// After the last.
    Last,
}

/// What a forward pass gives for the rows asked for.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `[rows, vocabulary]`.
    pub logits: Vec<f32>,
    /// `[rows, hidden]`: the states after the final norm, which the logits are made of.
    pub hidden: Vec<f32>,
}

/// Bodies in execution order, and what is handed out of the last besides its output.
struct Pass<'a> {
    bodies: &'a [Body],
    schedule: &'a [Run],
    hidden: ValueId,
}

impl<'a> Interpreter<'a> {
    /// Reads every weight of the graph as f32.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or format than the spec says.
    pub fn new(graph: &'a Graph, quant: &Quant, checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        let mut reader = weights::Reader::new(graph, &quant.checkpoint, checkpoint);
        let ids = (0..graph.weights.len()).map(WeightId);
        let weights = ids
            .map(|id| instances(graph, id).into_iter().map(|layer| reader.read(id, layer)).collect())
            .collect::<Result<_, _>>()?;
        Ok(Interpreter { graph, kv_format: quant.kv_format, weights })
    }

    /// Feeds `tokens` after what `cache` holds; returns logits `[rows, vocabulary]`.
    pub fn forward(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Vec<f32> {
        self.forward_with_hidden(tokens, cache, logits).logits
    }

    /// As [`forward`](Self::forward), with the hidden states that a draft goes on from.
    pub fn forward_with_hidden(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Outcome {
        let Graph { bodies, schedule, hidden, .. } = self.graph;
        self.run(&Pass { bodies, schedule, hidden: *hidden }, Vec::new(), tokens, cache, logits)
    }

    /// Runs a schedule, whose first body is handed `residual`.
    fn run(
        &self,
        pass: &Pass,
        mut residual: Vec<f32>,
        tokens: &[u32],
        cache: &mut Cache,
        logits: Logits,
    ) -> Outcome {
        let mut hidden = Vec::new();
        for run in pass.schedule {
            let body = &pass.bodies[run.body.0];
            let mut values: Vec<Vec<f32>> = vec![Vec::new(); body.values.len()];
            if let Some(input) = body.input {
                values[input.0] = std::mem::take(&mut residual);
            }
            for node in &body.nodes {
                values[node.output.0] = self.node(body, run.layer, node, &values, tokens, cache, logits);
            }
            residual = std::mem::take(&mut values[body.output.0]);
            if Some(run) == pass.schedule.last() {
                hidden = std::mem::take(&mut values[pass.hidden.0]);
            }
        }
        cache.tokens += tokens.len();
        Outcome { logits: residual, hidden }
    }

    #[expect(clippy::too_many_arguments, reason = "the interpreter's whole state, passed plainly")]
    fn node(
        &self,
        body: &Body,
        layer: Option<usize>,
        node: &Node,
        values: &[Vec<f32>],
        tokens: &[u32],
        cache: &mut Cache,
        logits: Logits,
    ) -> Vec<f32> {
        let widths = &body.values;
        let input = |i: usize| &values[node.inputs[i].0][..];
        let experts = |id: WeightId| &self.weights[id.0][layer_index(self.graph, id, layer)];
        let weight = |id: WeightId| &experts(id)[0][..];
        let shape = |id: WeightId| &self.graph.weights[id.0];
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
                let first = cache.tokens;
                let LayerCache { keys, values, .. } = cache.layer(layer);
                keys.extend(ops::round(input(1), self.kv_format));
                values.extend(ops::round(input(2), self.kv_format));
                let shape = ops::Heads { heads: *heads, kv_heads: *kv_heads, head_dim: *head_dim };
                ops::attention(input(0), keys, values, shape, *scale, first)
            }
            Op::DeltaNet { convolution, a_log, dt_bias, shape } => {
                let weights = delta::Weights {
                    convolution: weight(*convolution),
                    a_log: weight(*a_log),
                    dt_bias: weight(*dt_bias),
                };
                let inputs = [0, 1, 2, 3, 4].map(input);
                delta::delta_net(inputs, &weights, *shape, &mut cache.layer(layer).delta)
            }
            Op::SigmoidGate => {
                let (of, by) = (widths[node.inputs[0].0].width, widths[node.inputs[1].0].width);
                ops::sigmoid_gate(input(0), input(1), of / by)
            }
            Op::Route { experts, active, renormalise } => {
                experts::route(input(0), *experts, *active, *renormalise)
            }
            Op::ExpertGate { gate, up, activation, active } => {
                let pairs = (shape(*gate), shape(*up), &experts(*gate)[..], &experts(*up)[..]);
                experts::gate(input(0), input(1), pairs, *activation, *active)
            }
            Op::ExpertDown { down, active } => {
                experts::down(input(0), input(1), shape(*down), experts(*down), *active)
            }
            Op::Gate { activation } => ops::gate(input(0), input(1), *activation),
            Op::Concat => {
                let [a, b] = [0, 1].map(|i| input(i).chunks_exact(widths[node.inputs[i].0].width));
                a.zip(b).flat_map(|(a, b)| [a, b].concat()).collect()
            }
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
    let uses = |body: crate::graph::BodyId| {
        graph.bodies[body.0].nodes.iter().any(|node| node.op.weights().contains(&weight))
    };
    graph.schedule.iter().filter(|run| uses(run.body)).map(|run| run.layer).collect()
}

/// Where an instance stands in [`Interpreter::weights`].
fn layer_index(graph: &Graph, weight: WeightId, layer: Option<usize>) -> usize {
    let of_layer = graph.weights[weight.0].name.contains("{layer}").then_some(layer).flatten();
    instances(graph, weight).iter().position(|l| *l == of_layer).expect("a weight of this layer")
}

//! The oracle: runs a [`Graph`] in f32, slowly and plainly.
//!
//! Goldens made with transformers check this interpreter; it checks every backend and every pass. It is never
//! deleted and never optimised. It applies the quant spec: weights are the exact values of the stored format,
//! including scales beside a tensor; operands are rounded before a product to the weight's compute format;
//! keys and values are what is read back of them in their formats. Sums are f64, so that a comparison does
//! not depend on its own rounding.
//!
//! A graph that [`shard`](crate::passes::shard) has cut runs on all its ranks, op by op.

mod dflash;
mod draft;
mod images;
mod kv;
pub(crate) mod ops;
mod weights;

pub use images::{Features, Fed, Grid, ImageSpan, Trace, grid_positions};
pub(crate) use kv::Side;

use crate::graph::{Body, Graph, Node, Op, Run, ValueId, VisionGraph, Weight, WeightId};
use crate::spec::types::{DFLASH_PREFIX, NormWeight, Quant, VISION_PREFIX};
use kv::StaticScales;
use monomorph_weights::{Checkpoint, WeightsError};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A graph with its weights.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    /// By rank, then by weight, then by instance (a layer, or the only one).
    weights: Vec<Vec<Vec<Instance>>>,
    kv_scales: StaticScales,
}

/// Values of an instance of a weight on a rank, by expert (or the only one); ranks with the same share it.
type Instance = Arc<Vec<Vec<f32>>>;

/// State of one sequence, by rank and layer. A draft head's cache is separate from its model's.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    ranks: Vec<Vec<LayerCache>>,
    tokens: usize,
}

/// State that a layer keeps of a sequence; its type depends on the op. `None` before the first token.
#[derive(Debug, Default)]
struct LayerCache(Option<Box<dyn Kept>>);

/// A value that an op keeps between steps.
trait Kept: Any + std::fmt::Debug {
    fn copy(&self) -> Box<dyn Kept>;
}

impl<T: Any + Clone + std::fmt::Debug> Kept for T {
    fn copy(&self) -> Box<dyn Kept> {
        Box::new(self.clone())
    }
}

impl Clone for LayerCache {
    fn clone(&self) -> LayerCache {
        LayerCache(self.0.as_deref().map(Kept::copy))
    }
}

impl Cache {
    fn layer(&mut self, rank: usize, layer: Option<usize>) -> &mut LayerCache {
        let layer = layer.expect("what has a cache stands in a layer");
        if self.ranks.len() <= rank {
            self.ranks.resize_with(rank + 1, Vec::new);
        }
        let layers = &mut self.ranks[rank];
        if layers.len() <= layer {
            layers.resize_with(layer + 1, LayerCache::default);
        }
        &mut layers[layer]
    }
}

/// The rows whose logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Every token.
    All,
    /// The last token.
    Last,
}

/// Results of a forward pass for the requested rows.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `[rows, vocabulary]`.
    pub logits: Vec<f32>,
    /// `[rows, hidden]`: the states after the final norm, from which the logits are computed.
    pub hidden: Vec<f32>,
    /// `[tokens, taps * hidden]`: the residual streams of all tokens behind the layers that a drafter reads,
    /// side by side; empty without one.
    pub taps: Vec<f32>,
}

/// Bodies in execution order, and the value that the last returns besides its output.
struct Pass<'a> {
    bodies: &'a [Body],
    schedule: &'a [Run],
    hidden: ValueId,
    /// The layers behind which its residual stream is wanted.
    taps: &'a [usize],
    /// Whether its layers are the model's: a checkpoint's static scales are for their keys and values.
    scaled: bool,
}

impl<'a> Interpreter<'a> {
    /// Reads every weight of the graph as f32.
    ///
    /// # Errors
    /// When a tensor is missing, or its shape or format differs from the spec.
    pub fn new(graph: &'a Graph, quant: &Quant, checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        let mut reader = weights::Reader::new(graph, &quant.checkpoint, checkpoint);
        let mut weights = vec![Vec::new(); graph.ranks];
        for id in (0..graph.weights.len()).map(WeightId) {
            weights.iter_mut().for_each(|of_rank| of_rank.push(Vec::new()));
            for layer in instances(graph, id) {
                for (rank, instance) in reader.read(id, layer)?.into_iter().enumerate() {
                    weights[rank][id.0].push(instance);
                }
            }
        }
        let kv_scales = StaticScales::read(graph, quant, checkpoint)?;
        Ok(Interpreter { graph, weights, kv_scales })
    }

    /// Feeds `tokens` after the contents of `cache`; returns logits `[rows, vocabulary]`.
    pub fn forward(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Vec<f32> {
        self.forward_with_hidden(tokens, cache, logits).logits
    }

    /// Like [`forward`](Self::forward), with the hidden states from which a draft continues.
    pub fn forward_with_hidden(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Outcome {
        self.run(&self.whole(), Vec::new(), &Fed::text(tokens), cache, logits)
    }

    /// The model's own schedule.
    fn whole(&self) -> Pass<'a> {
        let Graph { bodies, schedule, hidden, dflash, .. } = self.graph;
        let taps = dflash.as_ref().map_or(&[][..], |dflash| &dflash.taps);
        Pass { bodies, schedule, hidden: *hidden, taps, scaled: true }
    }

    /// Runs a schedule, whose first body takes `residual`.
    fn run(&self, pass: &Pass, residual: Vec<f32>, fed: &Fed, cache: &mut Cache, logits: Logits) -> Outcome {
        let mut residual = vec![residual; self.graph.ranks];
        let (mut hidden, mut tapped) = (Vec::new(), Vec::new());
        for run in pass.schedule {
            let body = &pass.bodies[run.body.0];
            let mut values = self.body(pass, run, residual.clone(), fed, cache, logits);
            for (of_rank, residual) in values.iter_mut().zip(&mut residual) {
                *residual = std::mem::take(&mut of_rank[body.output.0]);
            }
            let bits = |rank: usize| residual[rank].iter().map(|it| it.to_bits());
            let alike = (1..residual.len()).all(|rank| bits(rank).eq(bits(0)));
            assert!(alike, "ranks differ after `{}`", body.name);
            if Some(run) == pass.schedule.last() {
                hidden = std::mem::take(&mut values[0][pass.hidden.0]);
            }
            if run.layer.is_some_and(|layer| pass.taps.contains(&layer)) {
                tapped.push(residual[0].clone());
            }
        }
        let tokens = fed.tokens.len();
        cache.tokens += tokens;
        let row = |rows: &Vec<f32>, token: usize| {
            let width = rows.len() / tokens;
            rows[token * width..][..width].to_vec()
        };
        let taps = (0..tokens).flat_map(|token| tapped.iter().flat_map(move |rows| row(rows, token)));
        Outcome { taps: taps.collect(), logits: residual.swap_remove(0), hidden }
    }

    /// Runs a body of a pass, whose input on every rank is `residual`; returns all its values, by rank.
    fn body(
        &self,
        pass: &Pass,
        run: &Run,
        residual: Vec<Vec<f32>>,
        fed: &Fed,
        cache: &mut Cache,
        logits: Logits,
    ) -> Vec<Values> {
        let body = &pass.bodies[run.body.0];
        let mut values: Vec<Values> = vec![vec![Vec::new(); body.values.len()]; self.graph.ranks];
        if let Some(input) = body.input {
            for (of_rank, residual) in values.iter_mut().zip(residual) {
                of_rank[input.0] = residual;
            }
        }
        for node in &body.nodes {
            for rank in 0..self.graph.ranks {
                let (interpreter, layer, of_ranks) = (self, run.layer, &values[..]);
                let mut it = Evaluation {
                    interpreter,
                    body,
                    rank,
                    layer,
                    scaled: pass.scaled,
                    node,
                    values: of_ranks,
                    fed,
                    cache,
                    logits,
                };
                let result = it.run();
                values[rank][node.output.0] = result;
            }
        }
        values
    }
}

/// The values of a body: `[rows, width]` each.
type Values = Vec<Vec<f32>>;

/// One op on one rank, and all its inputs.
pub(crate) struct Evaluation<'a> {
    interpreter: &'a Interpreter<'a>,
    body: &'a Body,
    rank: usize,
    layer: Option<usize>,
    /// See [`Pass`].
    scaled: bool,
    node: &'a Node,
    /// By rank.
    values: &'a [Values],
    fed: &'a Fed<'a>,
    cache: &'a mut Cache,
    logits: Logits,
}

impl<'a> Evaluation<'a> {
    /// An operand: `[rows, width]`.
    pub(crate) fn input(&self, index: usize) -> &'a [f32] {
        &self.values[self.rank][self.node.inputs[index].0]
    }

    /// An operand on every rank, in their order.
    pub(crate) fn input_of_ranks(&self, index: usize) -> Vec<&'a [f32]> {
        self.values.iter().map(|of_rank| &of_rank[self.node.inputs[index].0][..]).collect()
    }

    /// The rank that computes it.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Number of tokens in the step.
    pub(crate) fn tokens(&self) -> usize {
        self.fed.tokens.len()
    }

    /// Columns of the result.
    pub(crate) fn out_width(&self) -> usize {
        self.body.values[self.node.output.0].width
    }

    /// A weight, and its values for each expert.
    pub(crate) fn experts(&self, id: WeightId) -> (&'a Weight, &'a [Vec<f32>]) {
        let graph = self.interpreter.graph;
        let instance = layer_index(graph, id, self.layer);
        (&graph.weights[id.0], &self.interpreter.weights[self.rank][id.0][instance])
    }

    /// The values of a weight: `[rows, columns]`.
    pub(crate) fn weight(&self, id: WeightId) -> &'a [f32] {
        &self.experts(id).1[0]
    }

    /// The op's keys or values as attention reads them, after they were stored: vectors of `width`, one head
    /// after the other of each token.
    ///
    /// # Panics
    /// If the op keeps none.
    pub(crate) fn stored(&self, side: Side, width: usize, vectors: &[f32]) -> Vec<f32> {
        let kept = match &self.node.op {
            Op::Block(op) => op.kv(),
            _ => None,
        };
        let (_, formats) = kept.expect("an op that keeps keys and values");
        let format = match side {
            Side::Keys => formats.keys,
            Side::Values => formats.values,
        };
        let of_model = self.layer.filter(|_| self.scaled);
        self.interpreter.kv_scales.stored((of_model, side), format, width, vectors)
    }

    /// The position of the first row.
    pub(crate) fn first_position(&self) -> usize {
        self.cache.tokens
    }

    /// State that the op keeps of the sequence in this layer.
    pub(crate) fn state<T: Any + Clone + std::fmt::Debug + Default>(&mut self) -> &mut T {
        let kept = &mut self.cache.layer(self.rank, self.layer).0;
        let kept: &mut dyn Any = kept.get_or_insert_with(|| Box::<T>::default()).as_mut();
        kept.downcast_mut().expect("a layer has one op that keeps something")
    }

    /// Columns of an operand.
    pub(crate) fn width(&self, index: usize) -> usize {
        self.body.values[self.node.inputs[index].0].width
    }

    fn run(&mut self) -> Vec<f32> {
        let input = |index| self.input(index);
        let width = self.out_width();
        match &self.node.op {
            Op::Embedding { table } => {
                ops::embedding(self.experts(*table).0, self.weight(*table), self.fed.tokens)
            }
            Op::RmsNorm { weight, eps, form, groups, ranks: 1 } => {
                ops::rms_norm(input(0), self.weight(*weight), *eps, *form, width / groups)
            }
            Op::RmsNorm { weight, eps, form, .. } => {
                let (parts, weight) = (self.input_of_ranks(0), self.weight(*weight));
                ops::rms_norm_of_ranks(&parts, self.rank, weight, *eps, *form, width)
            }
            Op::Normalise { eps, groups } => {
                let width = width / groups;
                ops::rms_norm(input(0), &vec![1.0; width], *eps, NormWeight::Plain, width)
            }
            Op::Scale { factor } => input(0).iter().map(|x| factor * x).collect(),
            Op::ScaleBy { weight } => input(0).iter().map(|x| self.weight(*weight)[0] * x).collect(),
            Op::Cap { cap } => ops::capped(input(0), *cap),
            Op::Linear { weight, bias } => {
                let (shape, bias) = (self.experts(*weight).0, bias.map(|it| self.weight(it)));
                ops::linear(input(0), shape, self.weight(*weight), bias)
            }
            Op::Rotary { heads, head_dim, frequencies } => {
                ops::rotary(input(0), *heads, *head_dim, frequencies, |token| self.position(token))
            }
            Op::SigmoidGate => ops::sigmoid_gate(input(0), input(1), self.width(0) / self.width(1)),
            Op::Activate { activation } => ops::activated(input(0), *activation),
            Op::Gate { activation } => ops::gate(input(0), input(1), *activation),
            Op::Concat => {
                let [a, b] = [0, 1].map(|i| input(i).chunks_exact(self.width(i)));
                a.zip(b).flat_map(|(a, b)| [a, b].concat()).collect()
            }
            Op::Add => input(0).iter().zip(input(1)).map(|(a, b)| a + b).collect(),
            Op::Select => match self.logits {
                Logits::All => input(0).to_vec(),
                Logits::Last => input(0)[input(0).len() - width..].to_vec(),
            },
            Op::Block(op) => op.run(self),
        }
    }
}

/// The layers that have a weight; `[None]` for one outside the layers.
fn instances(graph: &Graph, weight: WeightId) -> Vec<Option<usize>> {
    let name = &graph.weights[weight.0].name;
    if !name.contains("{layer}") {
        return vec![None];
    }
    let uses = |body: &Body| body.nodes.iter().any(|node| node.op.weights().contains(&weight));
    if let Some(dflash) = graph.dflash.as_ref().filter(|_| name.starts_with(DFLASH_PREFIX)) {
        let runs = dflash.context.iter().chain(&dflash.block);
        let layers = runs.filter(|run| uses(&dflash.bodies[run.body.0])).map(|run| run.layer);
        // Keys and values are made of tokens that the model was fed, and of a block's rows.
        return layers.collect::<BTreeSet<_>>().into_iter().collect();
    }
    match graph.vision.as_ref().filter(|_| name.starts_with(VISION_PREFIX)) {
        Some(VisionGraph { bodies, schedule, branches }) => {
            let runs = schedule.iter().chain(branches.iter().map(|branch| &branch.run));
            runs.filter(|run| uses(&bodies[run.body.0])).map(|run| run.layer).collect()
        }
        None => {
            let runs = graph.schedule.iter();
            runs.filter(|run| uses(&graph.bodies[run.body.0])).map(|run| run.layer).collect()
        }
    }
}

/// Index of an instance in [`Interpreter::weights`].
fn layer_index(graph: &Graph, weight: WeightId, layer: Option<usize>) -> usize {
    let of_layer = graph.weights[weight.0].name.contains("{layer}").then_some(layer).flatten();
    instances(graph, weight).iter().position(|l| *l == of_layer).expect("a weight of this layer")
}

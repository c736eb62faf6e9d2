//! Model and quant spec to graph.

use super::{Body, BodyId, Graph, Node, Op, RotaryFrequencies, Rows, Run, Value, ValueId, Weight, WeightId};
use crate::spec::types::{Attention, Compute, Ffn, Mixer, Model, Norm, Quant, TensorClass};

/// Builds the forward pass of `model` with the formats of `quant`.
pub fn build(model: &Model, quant: &Quant) -> Graph {
    let mut graph = Builder { quant, weights: Vec::new() };
    let mut bodies = vec![embed(&mut graph, model)];
    for (name, mixer) in &model.mixers {
        bodies.push(layer(&mut graph, model, name, mixer));
    }
    bodies.push(head(&mut graph, model));
    let body_of =
        |name: &str| BodyId(bodies.iter().position(|body| body.name == name).expect("checked by spec"));
    let layers = (0..model.layers)
        .map(|layer| Run { body: body_of(&model.pattern[layer % model.pattern.len()]), layer: Some(layer) });
    let once = |body| Run { body: BodyId(body), layer: None };
    let schedule = std::iter::once(once(0)).chain(layers).chain([once(bodies.len() - 1)]).collect();
    Graph { weights: graph.weights, schedule, bodies }
}

fn embed(graph: &mut Builder, model: &Model) -> Body {
    let mut body = BodyBuilder::new("embed", None);
    let table = graph.matrix("embedding", TensorClass::Embedding, model.vocabulary, model.hidden);
    let residual = body.node("residual", Rows::Tokens, model.hidden, Op::Embedding { table }, &[]);
    body.finish(residual)
}

fn head(graph: &mut Builder, model: &Model) -> Body {
    let mut body = BodyBuilder::new("head", Some(model.hidden));
    let selected = body.node("selected", Rows::Outputs, model.hidden, Op::Select, &[ValueId(0)]);
    let normed = graph.norm(&mut body, "norm", model.norm, selected, 1);
    let weight = if model.tied {
        graph.matrix("embedding", TensorClass::Embedding, model.vocabulary, model.hidden)
    } else {
        graph.matrix("head", TensorClass::Head, model.vocabulary, model.hidden)
    };
    let op = Op::Linear { weight, bias: None };
    let logits = body.node("logits", Rows::Outputs, model.vocabulary, op, &[normed]);
    body.finish(logits)
}

fn layer(graph: &mut Builder, model: &Model, name: &str, mixer: &Mixer) -> Body {
    let mut body = BodyBuilder::new(name, Some(model.hidden));
    let residual = ValueId(0);
    let normed = graph.norm(&mut body, "layers.{layer}.mixer.norm", model.norm, residual, 1);
    let mixed = match mixer {
        Mixer::Attention(attention) => self::attention(graph, &mut body, attention, normed, model.hidden),
    };
    let residual = body.node("mixed", Rows::Tokens, model.hidden, Op::Add, &[residual, mixed]);
    let normed = graph.norm(&mut body, "layers.{layer}.ffn.norm", model.norm, residual, 1);
    let out = ffn(graph, &mut body, &model.ffn, normed, model.hidden);
    let residual = body.node("residual_out", Rows::Tokens, model.hidden, Op::Add, &[residual, out]);
    body.finish(residual)
}

fn attention(
    graph: &mut Builder,
    body: &mut BodyBuilder,
    it: &Attention,
    x: ValueId,
    hidden: usize,
) -> ValueId {
    let (q_width, kv_width) = (it.heads * it.head_dim, it.kv_heads * it.head_dim);
    let mut project = |body: &mut BodyBuilder, part: &str, width: usize| {
        let name = format!("layers.{{layer}}.attention.{part}");
        graph.linear(body, part, &name, TensorClass::Attention, x, width, it.qkv_bias)
    };
    let mut q = project(body, "q", q_width);
    let mut k = project(body, "k", kv_width);
    let v = project(body, "v", kv_width);
    if let Some(norm) = it.qk_norm {
        q = graph.norm(body, "layers.{layer}.attention.q_norm", norm, q, it.heads);
        k = graph.norm(body, "layers.{layer}.attention.k_norm", norm, k, it.kv_heads);
    }
    let frequencies = RotaryFrequencies::new(&it.rotary);
    let mut rotate = |name: &str, x, heads, width| {
        let op = Op::Rotary { heads, head_dim: it.head_dim, frequencies: frequencies.clone() };
        body.node(name, Rows::Tokens, width, op, &[x])
    };
    let q = rotate("q_rotated", q, it.heads, q_width);
    let k = rotate("k_rotated", k, it.kv_heads, kv_width);
    let op = Op::Attention {
        heads: it.heads,
        kv_heads: it.kv_heads,
        head_dim: it.head_dim,
        scale: 1.0 / (it.head_dim as f32).sqrt(),
    };
    let mixed = body.node("context", Rows::Tokens, q_width, op, &[q, k, v]);
    let name = "layers.{layer}.attention.o";
    graph.linear(body, "o", name, TensorClass::Attention, mixed, hidden, it.output_bias)
}

fn ffn(graph: &mut Builder, body: &mut BodyBuilder, ffn: &Ffn, x: ValueId, hidden: usize) -> ValueId {
    let Ffn::Gated { width, activation, bias } = *ffn;
    let class = TensorClass::Ffn;
    let gate = graph.linear(body, "gate", "layers.{layer}.ffn.gate", class, x, width, bias);
    let up = graph.linear(body, "up", "layers.{layer}.ffn.up", class, x, width, bias);
    let inner = body.node("inner", Rows::Tokens, width, Op::Gate { activation }, &[gate, up]);
    graph.linear(body, "down", "layers.{layer}.ffn.down", class, inner, hidden, bias)
}

/// Collects weights, each once.
struct Builder<'a> {
    quant: &'a Quant,
    weights: Vec<Weight>,
}

impl Builder<'_> {
    fn matrix(&mut self, name: &str, class: TensorClass, rows: usize, columns: usize) -> WeightId {
        let compute = self.quant.compute[&class];
        self.weight(name, class, rows, columns, compute)
    }

    fn vector(&mut self, name: &str, rows: usize) -> WeightId {
        self.weight(name, TensorClass::Norm, rows, 1, Compute::F32)
    }

    fn weight(
        &mut self,
        name: &str,
        class: TensorClass,
        rows: usize,
        columns: usize,
        compute: Compute,
    ) -> WeightId {
        let stored = self.quant.stored[&class];
        let file_name = &self.quant.checkpoint.names[name];
        let scales = self.quant.scales.get(&class).map(|scales| scales.of(file_name, rows, columns));
        let weight = Weight { name: name.to_owned(), class, rows, columns, stored, compute, scales };
        match self.weights.iter().position(|known| known.name == name) {
            Some(known) => {
                assert_eq!(self.weights[known], weight, "{name} is used in two ways");
                WeightId(known)
            }
            None => {
                self.weights.push(weight);
                WeightId(self.weights.len() - 1)
            }
        }
    }

    fn norm(
        &mut self,
        body: &mut BodyBuilder,
        weight: &str,
        norm: Norm,
        x: ValueId,
        groups: usize,
    ) -> ValueId {
        let Value { width, rows, .. } = body.values[x.0];
        let weight_id = self.vector(weight, width / groups);
        let op = Op::RmsNorm { weight: weight_id, eps: norm.eps, form: norm.weight, groups };
        let name = format!("{}_normed", weight.rsplit('.').nth(1).unwrap_or("output"));
        let name =
            if groups > 1 { format!("{}ed", weight.rsplit('.').next().unwrap_or(weight)) } else { name };
        body.node(&name, rows, width, op, &[x])
    }

    #[expect(clippy::too_many_arguments, reason = "one call per projection, all of it data")]
    fn linear(
        &mut self,
        body: &mut BodyBuilder,
        value: &str,
        name: &str,
        class: TensorClass,
        x: ValueId,
        width: usize,
        bias: bool,
    ) -> ValueId {
        let weight = self.matrix(name, class, width, body.values[x.0].width);
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), width));
        body.node(value, Rows::Tokens, width, Op::Linear { weight, bias }, &[x])
    }
}

/// Collects the values and nodes of one body.
struct BodyBuilder {
    name: String,
    values: Vec<Value>,
    nodes: Vec<Node>,
    input: Option<ValueId>,
}

impl BodyBuilder {
    /// A body whose first value, if it has a width, is the residual stream handed in.
    fn new(name: &str, input: Option<usize>) -> BodyBuilder {
        let values = input.map(|width| Value { name: "residual".to_owned(), rows: Rows::Tokens, width });
        BodyBuilder {
            name: name.to_owned(),
            input: values.is_some().then_some(ValueId(0)),
            values: values.into_iter().collect(),
            nodes: Vec::new(),
        }
    }

    fn node(&mut self, name: &str, rows: Rows, width: usize, op: Op, inputs: &[ValueId]) -> ValueId {
        let output = ValueId(self.values.len());
        self.values.push(Value { name: name.to_owned(), rows, width });
        self.nodes.push(Node { op, inputs: inputs.to_vec(), output });
        output
    }

    fn finish(self, output: ValueId) -> Body {
        let BodyBuilder { name, values, nodes, input } = self;
        Body { name, values, nodes, input, output }
    }
}

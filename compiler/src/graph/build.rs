//! Model and quant spec to graph.

use super::{
    Body, BodyId, DflashGraph, DraftGraph, Graph, Node, Op, RankPart, RotaryFrequencies, Rows, Run, Value,
    ValueId, Weight, WeightId,
};
use crate::blocks;
use crate::blocks::Built;
use crate::blocks::attention::spec::Attention;
use crate::blocks::dflash::graph::Taps;
use crate::spec::types::{
    Compute, DFLASH_PREFIX, DRAFT_PREFIX, Decay, Dflash, DflashAttention, DflashLayer, Draft, FileTensor,
    LayerKind, Model, Norm, NormWeight, OnePlusNorms, Quant, Rotary, TensorClass, VISION_PREFIX, ValueHeads,
    Vision,
};
use crate::spec::{LAYER_PREFIX, TensorDecl, stored_tensors};
use monomorph_formats::Format;
use monomorph_formats::cached::KvFormats;
use std::collections::{BTreeMap, BTreeSet};

/// Builds the forward pass of `model` over text with the formats of `quant`.
pub fn build(model: &Model, quant: &Quant) -> Graph {
    build_for(model, quant, None, None)
}

/// The same over text and images, with the model's vision tower.
pub fn build_with_vision(model: &Model, quant: &Quant, tower: &Vision) -> Graph {
    build_for(model, quant, Some(tower), None)
}

/// The same over text, with the model's drafter of blocks.
pub fn build_with_dflash(model: &Model, quant: &Quant, drafter: &Dflash) -> Graph {
    build_for(model, quant, None, Some(drafter))
}

fn build_for(model: &Model, quant: &Quant, vision: Option<&Vision>, dflash: Option<&Dflash>) -> Graph {
    let mut tensors = stored_tensors(model, quant);
    tensors.extend(vision.iter().flat_map(|vision| vision.tensors(model.hidden)));
    tensors.extend(dflash.iter().flat_map(|dflash| dflash.tensors(model.hidden)));
    let tower = vision.map(|it| (VISION_PREFIX, Aside::new(&it.names, it.stored, it.compute)));
    let blocks = dflash.map(|it| (DFLASH_PREFIX, Aside::new(&it.names, it.stored, it.compute)));
    let mut graph = Builder {
        quant,
        vision,
        asides: tower.into_iter().chain(blocks).collect(),
        image_spans: false,
        of_drafter: false,
        tensors,
        weights: Vec::new(),
        decls: Vec::new(),
        kv: quant.kv_of_layers(model),
        layer_prefix: LAYER_PREFIX,
        layer: None,
    };
    let mut bodies = vec![embed(&mut graph, model)];
    let mut body_of = vec![BodyId(0); model.layers];
    for kind in model.pattern.iter().collect::<BTreeSet<_>>() {
        for (at, layers) in graph.stored_alike(model, kind).into_iter().enumerate() {
            let first = layers[0];
            graph.layer = Some(first);
            let name = if at == 0 { kind.name() } else { format!("{}_from_{first}", kind.name()) };
            layers.iter().for_each(|layer| body_of[*layer] = BodyId(bodies.len()));
            bodies.push(layer_body(&mut graph, model, std::slice::from_ref(kind), &name));
        }
    }
    graph.layer = None;
    let (head, hidden) = head(&mut graph, model, "head", "norm");
    bodies.push(head);
    let once = |body| Run { body: BodyId(body), layer: None };
    let last = bodies.len() - 1;
    // What taps of the tower give is added behind the first layers, by bodies before the head's.
    let taps = vision.map_or(0, |vision| vision.deepstack().len());
    bodies.splice(last..last, (0..taps).map(|tap| blocks::add_image_rows(model, tap)));
    let layers = body_of.into_iter().enumerate().flat_map(|(layer, body)| {
        let tap = (layer < taps).then(|| once(last + layer));
        [Run { body, layer: Some(layer) }].into_iter().chain(tap)
    });
    let schedule = std::iter::once(once(0)).chain(layers).chain([once(bodies.len() - 1)]).collect();
    // Names of layers are those of the draft head afterwards.
    let vision = vision.map(|vision| blocks::tower(&mut graph, model, vision));
    let draft = model.draft.as_ref().filter(|_| quant.has_draft());
    let draft = draft.map(|draft| self::draft(&mut graph, model, draft));
    let dflash = dflash.map(|dflash| drafter(&mut graph, model, dflash));
    Graph { weights: graph.weights, schedule, bodies, hidden, draft, vision, dflash, ranks: 1 }
}

/// A drafter of blocks: what it keeps of tokens that the model was fed, and its pass.
fn drafter(graph: &mut Builder, model: &Model, it: &Dflash) -> DflashGraph {
    (graph.layer_prefix, graph.of_drafter) = ("dflash.layers.{layer}.", true);
    let width = it.taps.len() * model.hidden;
    let mut context = BodyBuilder::of_rows("dflash_context", "taps", Rows::Tokens, width);
    let taps = context.node("kept", Rows::Tokens, width, Taps, &[ValueId(0)]);
    let sums = graph.linear(&mut context, "fused", "dflash.fc", taps, false);
    let normed = graph.norm(&mut context, "dflash.hidden_norm", it.norm, sums, 1);
    let mut bodies = vec![context.finish(normed)];
    let kinds = it.kinds();
    for (index, kind) in kinds.iter().enumerate() {
        bodies.push(keep_context(graph, model, it, index, *kind));
    }
    let embed = BodyId(bodies.len());
    bodies.push(drafter_embed(graph, model, it));
    for kind in &kinds {
        bodies.push(drafter_layer(graph, model, it, *kind));
    }
    let end = BodyId(bodies.len());
    bodies.push(head_of(graph, model, ("dflash_head", "dflash.norm", it.norm), None).0);
    // Bodies of a kind stand in the order of kinds, behind those of what comes before all layers.
    let of_layers = |first: usize| -> Vec<Run> {
        let kind = |layer: &DflashLayer| kinds.iter().position(|kind| kind == layer).expect("one of them");
        let runs = it.layers.iter().enumerate();
        runs.map(|(layer, of)| Run { body: BodyId(first + kind(of)), layer: Some(layer) }).collect()
    };
    let once = |body| std::iter::once(Run { body, layer: None });
    DflashGraph {
        taps: it.taps.clone(),
        mask: it.mask,
        bodies,
        context: once(BodyId(0)).chain(of_layers(1)).collect(),
        block: once(embed).chain(of_layers(embed.0 + 1)).chain(once(end)).collect(),
    }
}

/// Appends keys and values of `c` to the caches of layers of a kind; `c` goes on to the next layer.
fn keep_context(graph: &mut Builder, model: &Model, it: &Dflash, index: usize, kind: DflashLayer) -> Body {
    let mut body = BodyBuilder::new(&format!("dflash_keep_{}", kind.name()), Some(model.hidden));
    body.values[0].name = "context".to_owned();
    drafter_attention(it, kind).keep_context(graph, &mut body, index);
    let last = ValueId(body.values.len() - 1);
    body.finish(last)
}

fn drafter_embed(graph: &mut Builder, model: &Model, it: &Dflash) -> Body {
    let mut body = BodyBuilder::new("dflash_embed", None);
    let op = Op::Embedding { table: graph.weight("embedding") };
    let x = match it.embedding_scale {
        None => body.node("residual", Rows::Tokens, model.hidden, op, &[]),
        Some(factor) => {
            let embedding = body.node("embedding", Rows::Tokens, model.hidden, op, &[]);
            body.node("residual", Rows::Tokens, model.hidden, Op::Scale { factor }, &[embedding])
        }
    };
    body.finish(x)
}

/// Attention of a drafter's layers of a kind.
fn drafter_attention(it: &Dflash, kind: DflashLayer) -> Attention {
    let DflashAttention { heads, kv_heads, head_dim, qk_norm, ref rotary } = it.attention;
    Attention {
        heads,
        kv_heads,
        head_dim,
        rotary: Some(rotary.clone()),
        qk_norm: Some(qk_norm),
        norm_rows: false,
        v_norm: None,
        keys_as_values: false,
        scale: None,
        window: kind.window,
        qkv_bias: false,
        output_bias: false,
        gate: false,
    }
}

fn drafter_layer(graph: &mut Builder, model: &Model, it: &Dflash, kind: DflashLayer) -> Body {
    let mut body = BodyBuilder::new(&format!("dflash_{}", kind.name()), Some(model.hidden));
    graph.image_spans = kind.whole;
    let normed = graph.norm(&mut body, "layers.{layer}.mixer.norm", it.norm, ValueId(0), 1);
    let terms = drafter_attention(it, kind).build(graph, &mut body, normed);
    let residual = body.add_all("mixed", ValueId(0), &terms);
    body.residual = residual;
    let normed = graph.norm(&mut body, "layers.{layer}.ffn.norm", it.norm, residual, 1);
    let ffn = blocks::gated(it.width, it.activation);
    let terms = ffn.build(graph, &mut body, normed);
    let residual = body.add_all("residual_out", residual, &terms);
    body.finish(residual)
}

fn draft(graph: &mut Builder, model: &Model, it: &Draft) -> DraftGraph {
    graph.layer_prefix = DRAFT_PREFIX;
    let joined = draft_embed(graph, model);
    let layers = layer_body(graph, model, &it.layers, &format!("draft_{}", it.name()));
    let (head, hidden) = head(graph, model, "draft_head", "draft.norm");
    let run = |(body, layer)| Run { body: BodyId(body), layer };
    let schedule = [(0, None), (1, Some(0)), (2, None)].map(run);
    DraftGraph { bodies: vec![joined, layers, head], schedule: schedule.to_vec(), hidden }
}

/// The embeddings of the following tokens and the hidden states passed in, each normed, side by side through
/// one product. They are concatenated rather than multiplied by half a matrix each. This leaves one weight,
/// whole as in the file, and one sum, and a backend need only write two norms side by side before a product
/// like any other.
fn draft_embed(graph: &mut Builder, model: &Model) -> Body {
    let hidden = model.hidden;
    let mut body = BodyBuilder::new("draft_embed", Some(hidden));
    body.values[0].name = "hidden".to_owned();
    let table = graph.weight("embedding");
    let mut following = body.node("following", Rows::Tokens, hidden, Op::Embedding { table }, &[]);
    if graph.vision.is_some() {
        following = blocks::image_rows(&mut body, "following_seen", following);
    }
    let mut norm = |body: &mut BodyBuilder, name: &str, weight: &str, x| {
        let (eps, form) = (model.norm.eps, graph.form(model.norm));
        let op = Op::RmsNorm { weight: graph.weight(weight), eps, form, groups: 1, ranks: 1 };
        body.node(name, Rows::Tokens, hidden, op, &[x])
    };
    let following = norm(&mut body, "following_normed", "draft.embedding_norm", following);
    let so_far = norm(&mut body, "hidden_normed", "draft.hidden_norm", ValueId(0));
    let joined = body.node("joined", Rows::Tokens, 2 * hidden, Op::Concat, &[following, so_far]);
    let residual = graph.linear(&mut body, "residual", "draft.fc", joined, false);
    body.finish(residual)
}

fn embed(graph: &mut Builder, model: &Model) -> Body {
    let mut body = BodyBuilder::new("embed", None);
    let table = graph.weight("embedding");
    let op = Op::Embedding { table };
    let images = graph.vision.is_some();
    let [text, residual] = if images { ["text", "residual"] } else { ["residual"; 2] };
    let mut x = match model.around.embedding_scale {
        None => body.node(text, Rows::Tokens, model.hidden, op, &[]),
        Some(factor) => {
            let embedding = body.node("embedding", Rows::Tokens, model.hidden, op, &[]);
            body.node(text, Rows::Tokens, model.hidden, Op::Scale { factor }, &[embedding])
        }
    };
    // Rows of images are not scaled.
    if images {
        x = blocks::image_rows(&mut body, residual, x);
    }
    body.finish(x)
}

/// Builds a head; also returns its value of hidden states.
fn head(graph: &mut Builder, model: &Model, name: &str, norm: &str) -> (Body, ValueId) {
    head_of(graph, model, (name, norm, model.norm), model.around.logit_cap)
}

/// The same behind a norm of this form, with logits bounded by `cap`.
fn head_of(
    graph: &mut Builder,
    model: &Model,
    (name, norm, form): (&str, &str, Norm),
    cap: Option<f32>,
) -> (Body, ValueId) {
    let mut body = BodyBuilder::new(name, Some(model.hidden));
    let selected = body.node("selected", Rows::Outputs, model.hidden, Op::Select, &[ValueId(0)]);
    let normed = graph.norm(&mut body, norm, form, selected, 1);
    let weight = graph.weight(if model.tied { "embedding" } else { "head" });
    let op = Op::Linear { weight, bias: None };
    let mut logits = body.node("logits", Rows::Outputs, model.vocabulary, op, &[normed]);
    if let Some(cap) = cap {
        logits = body.node("logits_capped", Rows::Outputs, model.vocabulary, Op::Cap { cap }, &[logits]);
    }
    (body.finish(logits), normed)
}

/// One layer after another in one body: a layer of the model is one, a draft head may have more.
fn layer_body(graph: &mut Builder, model: &Model, kinds: &[LayerKind], name: &str) -> Body {
    let mut body = BodyBuilder::new(name, Some(model.hidden));
    let last = kinds.iter().fold(ValueId(0), |residual, kind| layer(graph, model, kind, &mut body, residual));
    body.finish(last)
}

/// Adds a layer to a body, and returns the residual stream behind it.
fn layer(
    graph: &mut Builder,
    model: &Model,
    kind: &LayerKind,
    body: &mut BodyBuilder,
    mut residual: ValueId,
) -> ValueId {
    let mixer = &model.mixers[&kind.mixer];
    if mixer.mixes() {
        let normed = graph.norm(body, "layers.{layer}.mixer.norm", model.norm, residual, 1);
        graph.image_spans = graph.vision.is_some_and(|vision| vision.is_bidirectional(&kind.mixer));
        let terms = mixer.build(graph, body, normed);
        let terms = post_normed(graph, body, model, "mixer", terms);
        residual = body.add_all("mixed", residual, &terms);
    }
    let ffn = model.ffn_of(kind);
    if ffn.follows() {
        body.residual = residual;
        let normed = graph.norm(body, "layers.{layer}.ffn.norm", model.norm, residual, 1);
        let terms = ffn.build(graph, body, normed);
        let terms = post_normed(graph, body, model, "ffn", terms);
        residual = body.add_all("residual_out", residual, &terms);
    }
    if model.around.layer_scale {
        let op = Op::ScaleBy { weight: graph.weight("layers.{layer}.scale") };
        residual = body.node("residual_scaled", Rows::Tokens, model.hidden, op, &[residual]);
    }
    residual
}

/// What a block gives, normed as one if the model norms it before it is added to the residual stream.
fn post_normed(
    graph: &mut Builder,
    body: &mut BodyBuilder,
    model: &Model,
    block: &str,
    terms: Vec<ValueId>,
) -> Vec<ValueId> {
    let (Some((first, more)), true) = (terms.split_first(), model.around.post_norms) else { return terms };
    let sum = body.add_all(&format!("{block}_sum"), *first, more);
    vec![graph.norm(body, &format!("layers.{{layer}}.{block}.post_norm"), model.norm, sum, 1)]
}

/// Tensors that VISION.toml or DFLASH.toml describes.
#[derive(Clone, Copy)]
struct Aside<'a> {
    names: &'a BTreeMap<String, FileTensor>,
    stored: Format,
    compute: Compute,
}

impl<'a> Aside<'a> {
    fn new(names: &'a BTreeMap<String, FileTensor>, stored: Format, compute: Compute) -> Aside<'a> {
        Aside { names, stored, compute }
    }
}

/// Collects weights, each of them once.
pub(crate) struct Builder<'a> {
    quant: &'a Quant,
    /// The tower, of a graph that takes images.
    vision: Option<&'a Vision>,
    /// What says how tensors are stored whose names have a prefix, in place of the quant spec.
    asides: Vec<(&'static str, Aside<'a>)>,
    /// Whether the tokens of an image attend to all of it in the mixer under construction, or the rows of a
    /// block in a drafter's.
    image_spans: bool,
    /// Whether that mixer is a drafter's.
    of_drafter: bool,
    tensors: Vec<TensorDecl>,
    weights: Vec<Weight>,
    /// The weights' declarations in `tensors`: layers that store a tensor unlike others, or in another shape,
    /// have a weight of their own.
    decls: Vec<usize>,
    /// Formats of every layer's keys and values.
    kv: Vec<KvFormats>,
    /// One of the layers that the body under construction is for, if they are the model's.
    layer: Option<usize>,
    /// Prefix of a layer's weights in place of [`LAYER_PREFIX`]: the draft head's layer is built like any
    /// other.
    layer_prefix: &'static str,
}

impl Builder<'_> {
    /// Formats of the keys and values of the layer under construction.
    pub(crate) fn kv(&self) -> KvFormats {
        self.layer.map_or(self.quant.kv_formats, |layer| self.kv[layer])
    }

    /// Whether the mixer under construction is a layer of a drafter of blocks.
    pub(crate) fn of_drafter(&self) -> bool {
        self.of_drafter
    }

    /// Whether the tokens of an image, or the rows of a block, attend to all of it in the mixer under
    /// construction.
    pub(crate) fn image_spans(&self) -> bool {
        self.image_spans
    }

    /// The frequencies of a rotary embedding of the text model.
    pub(crate) fn frequencies(&self, rotary: &Rotary) -> RotaryFrequencies {
        let frequencies = RotaryFrequencies::new(rotary);
        match self.vision.and_then(Vision::mrope) {
            Some(sections) => frequencies.with_axes(sections),
            None => frequencies,
        }
    }

    /// The layers of a kind, those together that store all of their tensors alike, and keys and values.
    fn stored_alike(&self, model: &Model, kind: &LayerKind) -> Vec<Vec<usize>> {
        let has = |decl: &TensorDecl, layer: usize| {
            decl.layers.as_ref().is_some_and(|layers| layers.contains(&layer))
        };
        let keeps = model.mixers[&kind.mixer].kv().is_some();
        let stored = |layer: usize| {
            let of_layer = self.tensors.iter().filter(|decl| has(decl, layer));
            let tensors: Vec<&str> = of_layer.map(|decl| decl.name.as_str()).collect();
            (tensors, keeps.then(|| self.kv[layer]))
        };
        let mut alike: Vec<Vec<usize>> = Vec::new();
        for layer in (0..model.layers).filter(|layer| model.layer(*layer) == kind) {
            match alike.iter_mut().find(|layers| stored(layers[0]) == stored(layer)) {
                Some(layers) => layers.push(layer),
                None => alike.push(vec![layer]),
            }
        }
        alike
    }

    /// The weight with this name, which must be one of the model's.
    pub(crate) fn weight(&mut self, name: &str) -> WeightId {
        let name = name.replacen(LAYER_PREFIX, self.layer_prefix, 1);
        let name = name.as_str();
        let here = |decl: &&TensorDecl| {
            let of = |layer: usize| decl.layers.as_ref().is_none_or(|layers| layers.contains(&layer));
            decl.base() == name && self.layer.is_none_or(of)
        };
        let at = self.tensors.iter().position(|decl| here(&decl)).expect("a tensor of the model");
        if let Some(known) = self.decls.iter().position(|known| *known == at) {
            return WeightId(known);
        }
        self.decls.push(at);
        let decl = &self.tensors[at];
        let said = "the spec says it of every tensor";
        let aside = self.asides.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, aside)| *aside);
        let names = aside.map_or(&self.quant.checkpoint.names, |aside| aside.names);
        let file = names[name].clone();
        let columns = decl.columns.unwrap_or(1);
        let scales = self.quant.scales_of(decl.class, &decl.name);
        let scales = scales.filter(|_| decl.columns.is_some() && aside.is_none());
        let experts = decl.experts.filter(|_| file.stacks_experts(name));
        let file_rows = file.file_rows(decl.rows, experts);
        self.weights.push(Weight {
            name: name.to_owned(),
            class: decl.class,
            rows: decl.rows,
            columns,
            experts: decl.experts,
            file_shape: decl.file_shape(&file),
            stored: match aside {
                Some(aside) => aside.stored,
                None => self.quant.stored.of(decl.class, &decl.name).expect(said),
            },
            compute: match (decl.class, aside) {
                (TensorClass::Norm, _) => Compute::F32,
                (_, Some(aside)) => aside.compute,
                (class, None) => self.quant.compute.of(class, &decl.name).expect(said),
            },
            scales: scales.map(|scales| scales.of(&file.name, file_rows, columns)),
            negative_rates: false,
            file,
            cut: RankPart::default(),
        });
        WeightId(self.weights.len() - 1)
    }

    /// The logarithms of a decay's rates, which must be a weight of the model.
    pub(crate) fn decay(&mut self, name: &str) -> WeightId {
        let weight = self.weight(name);
        self.weights[weight.0].negative_rates = self.quant.checkpoint.decay == Decay::NegativeRate;
        weight
    }

    /// The order of a delta-net's value heads. Where each reads a key head of its own, or all the same one,
    /// both orders are one.
    pub(crate) fn value_heads(&self, key_heads: usize, value_heads: usize) -> ValueHeads {
        match self.quant.checkpoint.value_heads {
            ValueHeads::Tiled if key_heads > 1 && key_heads < value_heads => ValueHeads::Tiled,
            _ => ValueHeads::Grouped,
        }
    }

    /// How the weight of a norm is applied as the file holds it.
    fn form(&self, norm: Norm) -> NormWeight {
        match self.quant.checkpoint.one_plus_norms {
            OnePlusNorms::OneAdded => NormWeight::Plain,
            OnePlusNorms::AsModel => norm.weight,
        }
    }

    /// Adds a norm over each of `groups` parts of a row.
    pub(crate) fn norm(
        &mut self,
        body: &mut BodyBuilder,
        weight: &str,
        norm: Norm,
        x: ValueId,
        groups: usize,
    ) -> ValueId {
        let Value { width, rows, .. } = body.values[x.0];
        let weight_id = self.weight(weight);
        debug_assert_eq!(self.weights[weight_id.0].rows, width / groups, "{weight} fits its groups");
        let form = self.form(norm);
        let op = Op::RmsNorm { weight: weight_id, eps: norm.eps, form, groups, ranks: 1 };
        // A weight beside others of its block has a name of its own, not just `norm`.
        let own = weight.rsplit('.').next().filter(|leaf| groups > 1 || leaf.ends_with("_norm"));
        let block = weight.rsplit('.').nth(1).unwrap_or("output");
        let name = match own {
            Some("post_norm") => format!("{block}_post_normed"),
            Some(leaf) => format!("{leaf}ed"),
            None => format!("{block}_normed"),
        };
        body.node(&name, rows, width, op, &[x])
    }

    /// Adds the product of `x` and the weight `name`; the result is called `value`.
    pub(crate) fn linear(
        &mut self,
        body: &mut BodyBuilder,
        value: &str,
        name: &str,
        x: ValueId,
        bias: bool,
    ) -> ValueId {
        let weight = self.weight(name);
        let Weight { rows, columns, .. } = self.weights[weight.0];
        debug_assert_eq!(columns, body.values[x.0].width, "{name} fits its input");
        let bias = bias.then(|| self.weight(&format!("{name}.bias")));
        let of = body.rows(x);
        body.node(value, of, rows, Op::Linear { weight, bias }, &[x])
    }
}

/// Collects the values and nodes of one body.
pub(crate) struct BodyBuilder {
    name: String,
    values: Vec<Value>,
    nodes: Vec<Node>,
    input: Option<ValueId>,
    /// The residual stream before the block under construction, whose input is its norm.
    residual: ValueId,
}

impl BodyBuilder {
    /// A body whose first value is the incoming residual stream, if `input` gives its width.
    pub(crate) fn new(name: &str, input: Option<usize>) -> BodyBuilder {
        let values = input.map(|width| Value { name: "residual".to_owned(), rows: Rows::Tokens, width });
        BodyBuilder {
            name: name.to_owned(),
            input: values.is_some().then_some(ValueId(0)),
            values: values.into_iter().collect(),
            nodes: Vec::new(),
            residual: ValueId(0),
        }
    }

    /// A body whose first value is called `name` and comes in these rows.
    pub(crate) fn of_rows(body: &str, name: &str, rows: Rows, width: usize) -> BodyBuilder {
        let mut it = BodyBuilder::new(body, Some(width));
        it.values[0] = Value { name: name.to_owned(), rows, width };
        it
    }

    /// Adds the result of `op` on its operands, called `name`.
    pub(crate) fn node(
        &mut self,
        name: &str,
        rows: Rows,
        width: usize,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> ValueId {
        let op = op.into();
        let output = ValueId(self.values.len());
        self.values.push(Value { name: name.to_owned(), rows, width });
        self.nodes.push(Node { op, inputs: inputs.to_vec(), output });
        output
    }

    /// Adds terms to the residual stream; the last sum is called `name`.
    fn add_all(&mut self, name: &str, residual: ValueId, terms: &[ValueId]) -> ValueId {
        let width = self.width(residual);
        terms.iter().enumerate().fold(residual, |residual, (at, term)| {
            let before = terms.len() - 1 - at;
            let name = if before == 0 { name.to_owned() } else { format!("{name}_{before}_before") };
            self.node(&name, Rows::Tokens, width, Op::Add, &[residual, *term])
        })
    }

    /// The residual stream before the block under construction, for blocks that norm it in several ways.
    pub(crate) fn residual(&self) -> ValueId {
        self.residual
    }

    /// Columns of a value.
    pub(crate) fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    /// Rows of a value.
    pub(crate) fn rows(&self, value: ValueId) -> Rows {
        self.values[value.0].rows
    }

    /// The body, which passes on `output`.
    pub(crate) fn finish(self, output: ValueId) -> Body {
        let BodyBuilder { name, values, nodes, input, .. } = self;
        Body { name, values, nodes, input, output }
    }
}

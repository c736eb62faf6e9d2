//! Cuts a graph for several ranks (tensor parallelism: Shoeybi et al., Megatron-LM, 2019).
//!
//! All ranks run the same graph over parts of the weights: its widths are those of one rank. What a block's
//! op is cut into is its own matter ([`Operation::share`](crate::blocks)); products before it give a rank its
//! columns, products behind it a part of a sum. The inner width of a dense block is cut alike; so is that of
//! every expert of a mixture, unless ranks are to hold whole ones. Where a part of a sum would be added to
//! the residual stream, it is added to zeros and summed over the ranks; where it would be normed, it is
//! summed before, and every rank norms the sum; logits are computed by rows of the head and gathered. The
//! residual stream is whole on every rank, and has the same bits on all of them: every rank adds in the same
//! order. So the routers of all choose the same experts. A vision tower is whole on every rank, which
//! computes all of it: its weights are few beside the model's, and sums over ranks would stop each of its
//! layers twice.

use super::{PassError, pass_error};
use crate::blocks::exchange::graph::{Gather, Sum, Total, Zeros};
use crate::blocks::{BlockOp, Share, Split};
use crate::graph::{Body, Graph, Node, Op, RankPart, Rows, Value, ValueId, Weight, WeightId};
use crate::spec::types::Ranks;
use monomorph_abi::cut::{Segment, held};
use monomorph_abi::packed::TILE_ROWS;
use monomorph_abi::world::PIECE;
use monomorph_formats::{FP8_BLOCK, ScaleForm};
use std::collections::BTreeMap;

/// The graph of one of these ranks. A graph for one rank comes back as it is.
///
/// # Errors
/// Names the op or the weight that cannot be shared out to so many ranks.
pub fn shard(graph: &Graph, ranks: Ranks) -> Result<Graph, PassError> {
    if ranks.count == 1 {
        return Ok(graph.clone());
    }
    let mut whole = graph.clone();
    whole.ranks = ranks.count;
    let mut cutter =
        Cutter { whole: &graph.weights, ranks, weights: graph.weights.clone(), cuts: BTreeMap::new() };
    let drafts = whole.draft.iter_mut().flat_map(|draft| &mut draft.bodies);
    for body in whole.bodies.iter_mut().chain(drafts) {
        *body = cutter.body(body)?;
    }
    whole.weights = cutter.weights;
    Ok(whole)
}

struct Cutter<'a> {
    /// The weights before they are cut.
    whole: &'a [Weight],
    ranks: Ranks,
    /// The weights of a rank: those of the graph, cut, under their ids. Further parts of one follow.
    weights: Vec<Weight>,
    /// The parts that a weight has been cut into, each with its id.
    cuts: BTreeMap<WeightId, Vec<(RankPart, WeightId)>>,
}

impl Cutter<'_> {
    fn body(&mut self, body: &Body) -> Result<Body, PassError> {
        let mut splits = Splits::of(body, self.whole, self.ranks)?;
        let mut out = Body { nodes: Vec::new(), ..body.clone() };
        for (value, split) in out.values.iter_mut().zip(&splits.values) {
            if let Split::Columns(segments) = split {
                value.width = held(segments, self.ranks.count);
            }
        }
        for node in &body.nodes {
            let mut node = node.clone();
            for input in node.inputs.iter_mut().filter(|_| needs_sums(&node.op)) {
                *input = splits.total(&mut out, *input);
            }
            node.op = self.op(body, &splits, &node)?;
            match (&node.op, splits.adds_part(&node)) {
                (Op::Add, Some((residual, part))) => add_part(&mut out, &node, residual, part),
                _ => out.nodes.push(node),
            }
        }
        if let Split::Columns(_) = splits.values[body.output.0] {
            gather(&mut out, body.values[body.output.0].width);
        }
        Ok(out)
    }

    /// A node's op as a rank computes it.
    fn op(&mut self, body: &Body, splits: &Splits, node: &Node) -> Result<Op, PassError> {
        let of = |value: ValueId| &splits.values[value.0];
        let output = of(node.output);
        let ranks = self.ranks.count;
        let refuse = |why: &str| {
            let (op, value) = (node.op.name(), &body.values[node.output.0].name);
            pass_error!(
                "`{value}` ({op}) of body `{}` cannot be shared out to {ranks} ranks: {why}",
                body.name
            )
        };
        let whole = |split: &Split| *split == Split::Whole;
        let alike = node.inputs.iter().all(|input| of(*input) == output);
        let share = |count: usize, segments: &[Segment]| {
            let all: usize = segments.iter().map(Segment::whole).sum();
            held(segments, ranks) * count / all
        };
        Ok(match &node.op {
            Op::Embedding { table } => {
                Op::Embedding { table: self.weight(*table, RankPart::default(), body)? }
            }
            Op::Linear { weight, bias } => {
                let cut = match (of(node.inputs[0]), output) {
                    (Split::Whole, Split::Whole) | (Split::Partial, Split::Partial) => RankPart::default(),
                    (Split::Whole, Split::Columns(rows)) => RankPart::rows(rows.clone()),
                    (Split::Columns(columns), Split::Partial) => RankPart::columns(columns.clone()),
                    _ => return Err(refuse("a product takes a part of its inputs or of its outputs")),
                };
                let first_rank_only = *output == Split::Partial;
                let of_bias = RankPart { rows: cut.rows.clone(), first_rank_only, ..RankPart::default() };
                let bias = bias.map(|bias| self.weight(bias, of_bias, body)).transpose()?;
                Op::Linear { weight: self.weight(*weight, cut, body)?, bias }
            }
            Op::RmsNorm { weight, eps, form, groups, .. } => {
                let (groups, cut, ranks) = match output {
                    Split::Whole if alike => (*groups, RankPart::default(), 1),
                    Split::Columns(segments) if alike && *groups > 1 => {
                        (share(*groups, segments), RankPart::default(), 1)
                    }
                    Split::Columns(segments) if alike => (1, RankPart::rows(segments.clone()), ranks),
                    _ => return Err(refuse("its operands are not cut alike")),
                };
                let weight = self.weight(*weight, cut, body)?;
                Op::RmsNorm { weight, eps: *eps, form: *form, groups, ranks }
            }
            Op::Normalise { eps, groups } => match output {
                Split::Whole if alike => Op::Normalise { eps: *eps, groups: *groups },
                Split::Columns(segments) if alike && *groups > 1 => {
                    Op::Normalise { eps: *eps, groups: share(*groups, segments) }
                }
                _ => return Err(refuse("its mean is of the whole row")),
            },
            Op::ScaleBy { weight } if alike && *output != Split::Partial => {
                Op::ScaleBy { weight: self.weight(*weight, RankPart::default(), body)? }
            }
            op @ (Op::Scale { .. } | Op::Cap { .. }) if alike && *output != Split::Partial => op.clone(),
            Op::Scale { .. } | Op::ScaleBy { .. } | Op::Cap { .. } => {
                return Err(refuse("it takes whole values or columns"));
            }
            Op::Rotary { heads, head_dim, frequencies } => {
                let heads = match output {
                    Split::Whole if alike => *heads,
                    Split::Columns(segments) if alike => share(*heads, segments),
                    _ => return Err(refuse("it rotates heads that other ranks hold")),
                };
                Op::Rotary { heads, head_dim: *head_dim, frequencies: frequencies.clone() }
            }
            Op::Block(_) => {
                let Share { op, inputs, output: _, cuts } = &splits.shares[&node.output];
                let mut wanted = inputs.iter().chain(std::iter::repeat(&Split::Whole));
                if !node.inputs.iter().all(|input| Some(of(*input)) == wanted.next()) {
                    return Err(refuse("its operands are not cut as it is"));
                }
                for weight in op.weights() {
                    let cut = cuts.iter().find(|(it, _)| *it == weight).map(|(_, cut)| cut.clone());
                    if self.weight(weight, cut.unwrap_or_default(), body)? != weight {
                        return Err(refuse("another op cuts one of its weights otherwise"));
                    }
                }
                Op::Block(op.clone())
            }
            op @ (Op::Concat | Op::Select) => match node.inputs.iter().all(|input| whole(of(*input))) {
                true => op.clone(),
                false => return Err(refuse("it takes whole rows")),
            },
            Op::Add => match (alike, splits.adds_part(node)) {
                (false, None) => return Err(refuse("it adds columns to what is cut otherwise")),
                _ => Op::Add,
            },
            Op::SigmoidGate => match output {
                // A product of a part of a sum with what is whole.
                Split::Partial if whole(of(node.inputs[1])) => Op::SigmoidGate,
                Split::Whole | Split::Columns(_) if alike => Op::SigmoidGate,
                _ => return Err(refuse("its operands are not cut alike")),
            },
            Op::Gate { activation } if alike && *output != Split::Partial => {
                Op::Gate { activation: *activation }
            }
            Op::Activate { activation } if alike && *output != Split::Partial => {
                Op::Activate { activation: *activation }
            }
            Op::Gate { .. } | Op::Activate { .. } => {
                return Err(refuse("it takes whole values or columns"));
            }
        })
    }

    /// The part of a weight that ranks hold. The first part of a weight keeps its id.
    fn weight(&mut self, id: WeightId, cut: RankPart, body: &Body) -> Result<WeightId, PassError> {
        let cuts = self.cuts.entry(id).or_default();
        if let Some((_, known)) = cuts.iter().find(|(known, _)| *known == cut) {
            return Ok(*known);
        }
        let whole = &self.whole[id.0];
        let ranks = self.ranks.count;
        check(whole, &cut, ranks)?;
        let mut part = whole.clone();
        if !cut.rows.is_empty() {
            part.rows = held(&cut.rows, ranks);
        }
        if !cut.columns.is_empty() {
            part.columns = held(&cut.columns, ranks);
        }
        if cut.experts {
            part.experts = part.experts.map(|experts| experts / ranks);
        }
        part.cut = cut.clone();
        let place = if cuts.is_empty() {
            self.weights[id.0] = part;
            id
        } else {
            // A tied head, or that of a draft with fewer ids: another part of a tensor already cut.
            part.name = body.name.clone();
            self.weights.push(part);
            WeightId(self.weights.len() - 1)
        };
        cuts.push((cut, place));
        Ok(place)
    }
}

/// Checks that every rank's part of a weight consists of whole blocks of its format and of its scales.
fn check(weight: &Weight, cut: &RankPart, ranks: usize) -> Result<(), PassError> {
    let refuse = |what: &str, segment: &Segment, why: String| {
        let (name, whole, held) = (&weight.name, segment.whole(), segment.held(ranks));
        Err(pass_error!("`{name}` has {whole} {what}, and each of {ranks} ranks would hold {held}: {why}"))
    };
    let block128 = weight.scales.as_ref().is_some_and(|scales| scales.form == ScaleForm::Block128);
    let elements = weight.stored.block_elements();
    for segment in &cut.columns {
        let held = segment.held(ranks);
        if !held.is_multiple_of(elements) {
            let stored = weight.stored;
            return refuse("columns", segment, format!("{stored} is stored in blocks of {elements}"));
        }
        if block128 && !held.is_multiple_of(FP8_BLOCK) && !FP8_BLOCK.is_multiple_of(held) {
            return refuse("columns", segment, format!("its scales are of blocks of {FP8_BLOCK}"));
        }
    }
    for segment in cut.rows.iter().filter(|_| block128) {
        if !segment.held(ranks).is_multiple_of(TILE_ROWS) {
            return refuse("rows", segment, format!("with scales of blocks, rows are taken by {TILE_ROWS}"));
        }
    }
    Ok(())
}

/// Replaces `out = residual + part` by `out = residual + (the sum of all ranks' (0 + part))`.
fn add_part(body: &mut Body, node: &Node, residual: ValueId, part: ValueId) {
    let out = body.values[node.output.0].clone();
    let mut value = |suffix: &str| {
        body.values.push(Value { name: format!("{}_{suffix}", out.name), ..out.clone() });
        ValueId(body.values.len() - 1)
    };
    let (zeros, sums) = (value("zeros"), value("part"));
    body.nodes.extend([
        Node { op: Zeros.into(), inputs: Vec::new(), output: zeros },
        Node { op: Op::Add, inputs: vec![zeros, part], output: sums },
        Node { op: Sum.into(), inputs: vec![residual, sums], output: node.output },
    ]);
}

/// Whether what an op makes of parts does not add up to what it makes of their sum.
fn needs_sums(op: &Op) -> bool {
    matches!(op, Op::RmsNorm { .. } | Op::Normalise { .. })
}

/// Gathers the body's result.
fn gather(body: &mut Body, width: usize) {
    let part = body.output;
    let Value { name, rows, .. } = body.values[part.0].clone();
    body.values[part.0].name = format!("{name}_part");
    body.values.push(Value { name, rows, width });
    body.output = ValueId(body.values.len() - 1);
    body.nodes.push(Node { op: Gather.into(), inputs: vec![part], output: body.output });
}

/// What a rank has of every value of a body.
struct Splits {
    values: Vec<Split>,
    /// The rank's share of every block's op, by its result.
    shares: BTreeMap<ValueId, Share<BlockOp>>,
    /// The sums over all ranks of parts that an op needs whole.
    totals: BTreeMap<ValueId, ValueId>,
}

impl Splits {
    fn of(body: &Body, weights: &[Weight], ranks: Ranks) -> Result<Splits, PassError> {
        let values = vec![Split::Whole; body.values.len()];
        let mut it = Splits { values, shares: BTreeMap::new(), totals: BTreeMap::new() };
        for node in &body.nodes {
            let Op::Block(op) = &node.op else { continue };
            let share = op.share(weights, ranks).map_err(|why| {
                let value = &body.values[node.output.0].name;
                pass_error!("`{value}` ({}) of body `{}`: {why}", op.name(), body.name)
            })?;
            it.values[node.output.0] = share.output.clone();
            for (input, split) in node.inputs.iter().zip(&share.inputs) {
                it.values[input.0] = split.clone();
            }
            it.shares.insert(node.output, share);
        }
        let ranks = ranks.count;
        it.spread(body);
        let inner = |node: &&Node| matches!(node.op, Op::Gate { .. } | Op::Activate { .. });
        for node in body.nodes.iter().filter(inner) {
            it.dense(body, node, ranks)?;
        }
        it.spread(body);
        it.logits(body, weights, ranks);
        for node in &body.nodes {
            it.sums(node);
        }
        Ok(it)
    }

    /// Ops that work column by column pass the columns of a rank on, in both directions.
    fn spread(&mut self, body: &Body) {
        loop {
            let before = self.values.clone();
            for node in &body.nodes {
                let alike: Vec<ValueId> = match &node.op {
                    Op::Normalise { groups, .. } if *groups > 1 => vec![node.inputs[0], node.output],
                    Op::RmsNorm { .. } | Op::Rotary { .. } => vec![node.inputs[0], node.output],
                    Op::SigmoidGate | Op::Gate { .. } | Op::Activate { .. } => {
                        let width = body.values[node.output.0].width;
                        let wide = |value: &ValueId| body.values[value.0].width == width;
                        node.inputs.iter().copied().filter(wide).chain([node.output]).collect()
                    }
                    _ => continue,
                };
                let split =
                    alike.iter().map(|it| &self.values[it.0]).find(|it| matches!(it, Split::Columns(_)));
                if let Some(split) = split.cloned() {
                    alike.iter().for_each(|it| self.values[it.0] = split.clone());
                }
            }
            if self.values == before {
                return;
            }
        }
    }

    /// Cuts the inner width of a dense block: a gate of two products before a third, or an activated one
    /// before a second.
    fn dense(&mut self, body: &Body, gate: &Node, ranks: usize) -> Result<(), PassError> {
        let product = |value: &ValueId| {
            let made = body.producer(*value).map(|id| &body.nodes[id.0]);
            made.is_some_and(|node| matches!(node.op, Op::Linear { .. }) && self.is_whole(node.inputs[0]))
        };
        if !self.is_whole(gate.output) || !gate.inputs.iter().all(product) {
            return Ok(());
        }
        let Value { width, name, .. } = &body.values[gate.output.0];
        if !width.is_multiple_of(ranks) {
            return Err(pass_error!(
                "`{name}` of body `{}` is {width} wide, which {ranks} ranks cannot share",
                body.name
            ));
        }
        self.values[gate.output.0] = Split::units(ranks, width / ranks);
        Ok(())
    }

    /// Cuts logits by rows of the head. A vocabulary that cannot be shared out in whole vectors stays whole.
    fn logits(&mut self, body: &Body, weights: &[Weight], ranks: usize) {
        let Value { width, rows, .. } = body.values[body.output.0];
        let made = |value: ValueId| body.producer(value).map(|id| &body.nodes[id.0]);
        let mut uncapped = body.output;
        if let Some(Node { op: Op::Cap { .. }, inputs, .. }) = made(uncapped)
            && body.values[inputs[0].0].width == width
        {
            uncapped = inputs[0];
        }
        let Some(Node { op: Op::Linear { weight, .. }, .. }) = made(uncapped) else { return };
        let segment = Segment { units: ranks, unit: width / ranks };
        let shared_out = width.is_multiple_of(PIECE * ranks);
        let fits = check(&weights[weight.0], &RankPart::rows([segment]), ranks).is_ok();
        if rows == Rows::Outputs && shared_out && fits {
            for value in [uncapped, body.output] {
                self.values[value.0] = Split::Columns(vec![segment]);
            }
        }
    }

    /// Products of a part of the columns are parts of sums, and so is what is linear in them.
    fn sums(&mut self, node: &Node) {
        let of = |value: ValueId| &self.values[value.0];
        let partial = match &node.op {
            Op::Linear { .. } => matches!(of(node.inputs[0]), Split::Columns(_) | Split::Partial),
            Op::SigmoidGate => *of(node.inputs[0]) == Split::Partial,
            Op::Add => node.inputs.iter().all(|input| *of(*input) == Split::Partial),
            _ => false,
        };
        if partial {
            self.values[node.output.0] = Split::Partial;
        }
    }

    /// The sum over all ranks of a value that they have parts of, which is added to the body at first use;
    /// any other value is itself.
    fn total(&mut self, body: &mut Body, part: ValueId) -> ValueId {
        if self.values[part.0] != Split::Partial {
            return part;
        }
        if let Some(known) = self.totals.get(&part) {
            return *known;
        }
        let value = body.values[part.0].clone();
        let total = ValueId(body.values.len());
        body.values.push(Value { name: format!("{}_total", value.name), ..value });
        body.nodes.push(Node { op: Total.into(), inputs: vec![part], output: total });
        self.values.resize(body.values.len(), Split::Whole);
        self.totals.insert(part, total);
        total
    }

    /// The operands of an addition of a part of a sum to what is whole: the whole one, and the part.
    fn adds_part(&self, node: &Node) -> Option<(ValueId, ValueId)> {
        let [a, b] = node.inputs[..] else { return None };
        let partial = |value: ValueId| self.values[value.0] == Split::Partial;
        match (partial(a), partial(b)) {
            (false, true) => Some((a, b)),
            (true, false) => Some((b, a)),
            _ => None,
        }
    }

    fn is_whole(&self, value: ValueId) -> bool {
        self.values[value.0] == Split::Whole
    }
}

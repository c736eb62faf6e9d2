//! The ops of a mixture and the layers built from them.

use super::spec::{Experts, Router};
use crate::blocks::products::spec::{gated, ungated};
use crate::blocks::{Built, FieldForm, Operation, Share, Split};
use crate::graph::{BodyBuilder, Builder, Op, RankPart, Rows, ValueId, Weight, WeightId};
use crate::spec::types::{Activation, Ranks};
use monomorph_abi::cut::Segment;

/// `logits -> [weights | experts]`: the experts with the largest *keys*, in descending order, the first of
/// equals first, and what each weighs. With softmax, both are the softmax over all logits. With scores, a key
/// is `score + correction` in f32, where `score` is the sigmoid rounded to f32, and a weight is
/// `scale score / (1e-20 + sum of the chosen scores)`: the summand is that of the makers' code, and matters
/// only where all chosen scores all but vanish. Where experts have scales, the weight of each is multiplied
/// by its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Experts to choose from: logits of a row.
    pub experts: usize,
    /// Experts chosen per row.
    pub active: usize,
    /// What keys and weights are.
    pub weighing: Weighing<WeightId>,
    /// One number for each expert, which multiplies its weight.
    pub scales: Option<WeightId>,
}

/// What a router chooses and weighs by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighing<T> {
    /// The softmax over all logits.
    Softmax {
        /// Whether the chosen weights are divided by their sum.
        renormalise: bool,
    },
    /// Scores: sigmoids of the logits.
    Scores {
        /// Added to the scores to choose by, one per expert.
        correction: T,
        /// Multiplies the weights.
        scale: f32,
    },
}

/// Added to the sum that scores are divided by.
pub const LEAST_SUM: f32 = 1e-20;

/// `(x, routing) -> activation(gate_e x) * up_e x`, one row for each chosen expert `e`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGate {
    /// `[width, inputs]` per expert.
    pub gate: WeightId,
    /// `[width, inputs]` per expert.
    pub up: WeightId,
    /// Activation of the gate.
    pub activation: Activation,
    /// Experts chosen per row.
    pub active: usize,
}

/// `(x, routing) -> activation(up_e x)`, one row for each chosen expert `e`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUp {
    /// `[width, inputs]` per expert.
    pub up: WeightId,
    /// Applied to every element.
    pub activation: Activation,
    /// Experts chosen per row.
    pub active: usize,
}

/// `(inner, routing) -> sum of weight_e * down_e inner_e` over the chosen experts, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertDown {
    /// `[outputs, width]` per expert.
    pub down: WeightId,
    /// Experts chosen per row.
    pub active: usize,
}

impl Operation for Route {
    const NAME: &'static str = "route";

    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        let correction = match self.weighing {
            Weighing::Softmax { .. } => None,
            Weighing::Scores { correction, .. } => Some(correction),
        };
        correction.into_iter().chain(self.scales).map(|weight| (weight, FieldForm::Vector)).collect()
    }
}

impl Operation for ExpertGate {
    const NAME: &'static str = "expert-gate";

    fn weights(&self) -> Vec<WeightId> {
        vec![self.gate, self.up]
    }

    /// A rank has a part of the inner width of every expert, or whole experts.
    fn share(&self, weights: &[Weight], ranks: Ranks) -> Result<Share<ExpertGate>, String> {
        let (output, cuts) = share_inner(weights, [self.gate, self.up], ranks)?;
        Ok(Share { op: self.clone(), inputs: Vec::new(), output, cuts })
    }
}

impl Operation for ExpertUp {
    const NAME: &'static str = "expert-up";

    fn weights(&self) -> Vec<WeightId> {
        vec![self.up]
    }

    fn share(&self, weights: &[Weight], ranks: Ranks) -> Result<Share<ExpertUp>, String> {
        let (output, cuts) = share_inner(weights, [self.up], ranks)?;
        Ok(Share { op: self.clone(), inputs: Vec::new(), output, cuts })
    }
}

/// What a rank has of the experts' inner rows, and of the matrices that make them.
fn share_inner<const N: usize>(
    weights: &[Weight],
    ids: [WeightId; N],
    ranks: Ranks,
) -> Result<(Split, Vec<(WeightId, RankPart)>), String> {
    if ranks.whole_experts {
        return Ok((Split::Chosen, share_experts(weights, ids, ranks)?));
    }
    let width = share_width(weights[ids[0].0].rows, ranks.count)?;
    Ok((Split::Columns(vec![width]), ids.map(|id| (id, RankPart::rows([width]))).to_vec()))
}

/// The inner width of an expert, shared out to ranks.
fn share_width(width: usize, ranks: usize) -> Result<Segment, String> {
    if !width.is_multiple_of(ranks) {
        return Err(format!("the inner width of {width} cannot be shared out to {ranks} ranks"));
    }
    Ok(Segment { units: ranks, unit: width / ranks })
}

/// Whole experts, shared out to ranks.
fn share_experts<const N: usize>(
    weights: &[Weight],
    ids: [WeightId; N],
    Ranks { count, .. }: Ranks,
) -> Result<Vec<(WeightId, RankPart)>, String> {
    for id in ids {
        let experts = weights[id.0].experts.expect("experts have a matrix each");
        if !experts.is_multiple_of(count) {
            return Err(format!("{experts} experts cannot be shared out to {count} ranks"));
        }
    }
    Ok(ids.map(|id| (id, RankPart::experts())).to_vec())
}

impl Operation for ExpertDown {
    const NAME: &'static str = "expert-down";

    fn weights(&self) -> Vec<WeightId> {
        vec![self.down]
    }

    fn share(&self, weights: &[Weight], ranks: Ranks) -> Result<Share<ExpertDown>, String> {
        if ranks.whole_experts {
            let cuts = share_experts(weights, [self.down], ranks)?;
            let inputs = vec![Split::Chosen];
            return Ok(Share { op: self.clone(), inputs, output: Split::Partial, cuts });
        }
        let width = share_width(weights[self.down.0].columns, ranks.count)?;
        let (inputs, cuts) =
            (vec![Split::Columns(vec![width])], vec![(self.down, RankPart::columns([width]))]);
        Ok(Share { op: self.clone(), inputs, output: Split::Partial, cuts })
    }
}

impl Built for Experts {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let Experts { experts, active, width, activation, gated: is_gated, latent, router, shared, .. } =
            *self;
        let hidden = body.width(x);
        let expert = |part: &str| format!("layers.{{layer}}.ffn.experts.{{expert}}.{part}");
        let judged = match self.router_norm {
            Some(norm) => {
                let residual = body.residual();
                let normed = graph.norm(body, "layers.{layer}.ffn.router.norm", norm, residual, 1);
                let op = Op::Scale { factor: 1.0 / (hidden as f32).sqrt() };
                body.node("router_scaled", Rows::Tokens, hidden, op, &[normed])
            }
            None => x,
        };
        let logits = graph.linear(body, "choices", "layers.{layer}.ffn.router", judged, false);
        let weighing = match router {
            Router::Softmax { renormalise } => Weighing::Softmax { renormalise },
            Router::Sigmoid { scale } => {
                Weighing::Scores { correction: graph.weight("layers.{layer}.ffn.router.correction"), scale }
            }
        };
        let scales = self.expert_scales.then(|| graph.weight("layers.{layer}.ffn.router.scales"));
        let op = Route { experts, active, weighing, scales };
        let routing = body.node("routing", Rows::Tokens, 2 * active, op, &[logits]);
        let branch = |graph: &mut Builder, body: &mut BodyBuilder, part: &str, x| match self.branch_norms {
            Some(norm) => graph.norm(body, &format!("layers.{{layer}}.ffn.{part}"), norm, x, 1),
            None => x,
        };
        let read = match self.branch_norms {
            Some(_) => {
                let residual = body.residual();
                branch(graph, body, "routed.norm", residual)
            }
            None => x,
        };
        let read = match latent {
            Some(_) => graph.linear(body, "latent", "layers.{layer}.ffn.latent.in", read, false),
            None => read,
        };
        let gate = is_gated.then(|| graph.weight(&expert("gate")));
        let up = graph.weight(&expert("up"));
        let op: Op = match gate {
            Some(gate) => ExpertGate { gate, up, activation, active }.into(),
            None => ExpertUp { up, activation, active }.into(),
        };
        let inner = body.node("experts_inner", Rows::Slots(active), width, op, &[read, routing]);
        let common = |graph: &mut Builder, body: &mut BodyBuilder| match is_gated {
            true => gated(graph, body, ("ffn.shared", "shared_"), Op::Gate { activation }, x, false),
            false => ungated(graph, body, ("ffn.shared", "shared_"), activation, x, false),
        };
        // All that reads normed rows comes before what reads the experts' inner ones.
        let unweighed = shared.filter(|it| !it.gate).map(|_| {
            let common = common(graph, body);
            branch(graph, body, "shared.post_norm", common)
        });
        let op = ExpertDown { down: graph.weight(&expert("down")), active };
        let mut routed = body.node("routed", Rows::Tokens, body.width(read), op, &[inner, routing]);
        if latent.is_some() {
            routed = graph.linear(body, "latent_out", "layers.{layer}.ffn.latent.out", routed, false);
        }
        let routed = branch(graph, body, "routed.post_norm", routed);
        if shared.is_none_or(|it| !it.gate) {
            return unweighed.into_iter().chain([routed]).collect();
        }
        let common = common(graph, body);
        let scale = graph.linear(body, "shared_scale", "layers.{layer}.ffn.shared.scale", x, false);
        let common = body.node("shared_scaled", Rows::Tokens, hidden, Op::SigmoidGate, &[common, scale]);
        vec![body.node("ffn_out", Rows::Tokens, hidden, Op::Add, &[routed, common])]
    }
}

//! `[ffn]` of the kind `experts`: its keys in MODEL.toml and its tensors.

use crate::blocks::FfnSpec;
use crate::spec::diagnostic::Source;
use crate::spec::model::{ACTIVATIONS, MAX_EXPERTS, MAX_WIDTH, flag, norm};
use crate::spec::reader::Table;
use crate::spec::types::{Activation, Norm, TensorClass};
use crate::spec::{LayerTensors, words};

/// A mixture of experts (Shazeer et al., 2017; Fedus et al., 2021): a router chooses some of them for every
/// token, and weighs their results.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen per token.
    pub active: usize,
    /// Inner width of one expert.
    pub width: usize,
    /// Whether experts have a gate, whose activation multiplies what up gives; without one, that is activated
    /// itself. The shared expert is as the others.
    pub gated: bool,
    /// Activation of every gate, or of every inner element.
    pub activation: Activation,
    /// Width of the rows that the chosen experts read and make, if it is not that of the residual stream:
    /// a projection goes before them, another one behind their sum.
    pub latent: Option<usize>,
    /// How logits choose and weigh.
    pub router: Router,
    /// The norm through which the router reads the residual stream, if it does not read what the experts do;
    /// its result is divided by the root of the width.
    pub router_norm: Option<Norm>,
    /// Whether a stored number multiplies the weight of each expert when it is chosen.
    pub expert_scales: bool,
    /// An expert that every token passes through, if there is one.
    pub shared: Option<SharedExpert>,
    /// Norms of the two branches, if they have such: one through which the chosen experts read the residual
    /// stream, one of their sum, and one of what the shared expert gives, which reads as blocks do.
    pub branch_norms: Option<Norm>,
}

/// How a router's logits choose experts and weigh their results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Router {
    /// The largest of the softmax choose and weigh.
    Softmax {
        /// Whether the chosen weights are divided by their sum.
        renormalise: bool,
    },
    /// The largest of sigmoid plus a correction of each expert's own choose; the sigmoids, divided by their
    /// sum, weigh (DeepSeek-AI, 2024).
    Sigmoid {
        /// Multiplies the weights.
        scale: f32,
    },
}

/// Value of `router` for sigmoids.
const SIGMOID: &str = "sigmoid-corrected-top-k-renormalised";

/// An expert that every token passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width.
    pub width: usize,
    /// Whether its result is multiplied by the sigmoid of a projection of its own.
    pub gate: bool,
}

impl FfnSpec for Experts {
    const KIND: &'static str = "experts";

    fn read(source: &Source, mut table: Table) -> Option<Experts> {
        let mut size = |key: &str, example: u32, most: u64| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
        };
        let experts = size("experts", 256, MAX_EXPERTS);
        let active = size("active", 8, MAX_EXPERTS);
        let width = size("width", 512, MAX_WIDTH);
        if let (Some(experts), Some(active)) = (&experts, &active)
            && active.value > experts.value
        {
            let message =
                format!("`ffn.active` = {} is more than the {} experts", active.value, experts.value);
            let help = format!("at most {}", experts.value);
            let mistake = source.mistake(active.span.clone(), "ffn.active", message, "too many", help);
            source.sink.push(mistake.also(experts.span.clone(), "the experts"));
        }
        let activation =
            table.required("activation", "activation = \"silu\"").and_then(|it| it.choice(&ACTIVATIONS));
        let ungated = flag(&mut table, "ungated");
        let latent = match table.optional("latent") {
            Some(value) => value.size(1..=MAX_WIDTH).map(|it| Some(it.value)),
            None => Some(None),
        };
        let routers = [
            ("softmax-top-k-renormalised", Router::Softmax { renormalise: true }),
            ("softmax-top-k", Router::Softmax { renormalise: false }),
            (SIGMOID, Router::Sigmoid { scale: 1.0 }),
        ];
        let router = table
            .required("router", "router = \"softmax-top-k-renormalised\"")
            .and_then(|it| it.choice(&routers))
            .map(|it| it.value);
        // Only these weights have a scale; with any other the key is unknown.
        let router = match router {
            Some(Router::Sigmoid { scale }) => scale_of(&mut table, scale),
            other => other,
        };
        let router_norm = match table.optional("router_norm") {
            Some(value) => norm(value).map(Some),
            None => Some(None),
        };
        let expert_scales = flag(&mut table, "expert_scales");
        let shared = match table.optional("shared") {
            Some(value) => value.table().and_then(shared).map(Some),
            None => Some(None),
        };
        // Without two branches, and with one that is weighed, the key is unknown.
        let branches = matches!(shared, Some(Some(SharedExpert { gate: false, .. })));
        let branch_norms = match branches.then(|| table.optional("branch_norms")).flatten() {
            Some(value) => norm(value).map(Some),
            None => Some(None),
        };
        table.finish();
        Some(Experts {
            experts: experts?.value,
            active: active?.value,
            width: width?.value,
            gated: !ungated?,
            activation: activation?.value,
            latent: latent?,
            router: router?,
            router_norm: router_norm?,
            expert_scales: expert_scales?,
            shared: shared?,
            branch_norms: branch_norms?,
        })
    }

    fn write(&self) -> String {
        let (router, scale) = match self.router {
            Router::Softmax { renormalise: true } => ("softmax-top-k-renormalised", 1.0),
            Router::Softmax { renormalise: false } => ("softmax-top-k", 1.0),
            Router::Sigmoid { scale } => (SIGMOID, scale),
        };
        let scale = if scale == 1.0 { String::new() } else { format!("router_scale = {scale:?}\n") };
        let shared = self.shared.map_or(String::new(), |shared| {
            let gate = if shared.gate { "sigmoid" } else { "none" };
            format!("shared = {{ width = {}, gate = {gate:?} }}\n", shared.width)
        });
        let own = self.router_norm.map_or(String::new(), |it| {
            format!("router_norm = {} # of the residual stream\n", words::norm(it))
        });
        let scales = if self.expert_scales { "expert_scales = true # of the weights\n" } else { "" };
        let branches = self.branch_norms.map_or(String::new(), |it| {
            format!(
                "branch_norms = {} # before and behind the experts, behind the shared one\n",
                words::norm(it)
            )
        });
        let ungated =
            if self.gated { "" } else { "ungated = true # experts have no gate, only up and down\n" };
        let latent = self.latent.map_or(String::new(), |width| format!("latent = {width}\n"));
        format!(
            "experts = {}\nactive = {}\nwidth = {}\n{ungated}{latent}activation = \"{}\"\nrouter = \"{router}\"\n\
             {scale}{own}{scales}{shared}{branches}",
            self.experts,
            self.active,
            self.width,
            words::activation(self.activation)
        )
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (width, hidden) = (self.width, list.hidden);
        list.matrix("ffn.router", TensorClass::Router, self.experts, hidden);
        if let Router::Sigmoid { .. } = self.router {
            list.vector("ffn.router.correction", self.experts);
        }
        if self.router_norm.is_some() {
            list.vector("ffn.router.norm", hidden);
        }
        if self.expert_scales {
            list.vector("ffn.router.scales", self.experts);
        }
        if self.branch_norms.is_some() {
            list.vector("ffn.routed.norm", hidden);
        }
        let outer = self.latent.unwrap_or(hidden);
        if self.latent.is_some() {
            list.matrix("ffn.latent.in", TensorClass::Latent, outer, hidden);
        }
        for (part, rows, columns) in [("gate", width, outer), ("up", width, outer), ("down", outer, width)] {
            if self.gated || part != "gate" {
                list.experts(part, rows, columns, self.experts);
            }
        }
        if self.latent.is_some() {
            list.matrix("ffn.latent.out", TensorClass::Latent, hidden, outer);
        }
        if self.branch_norms.is_some() {
            list.vector("ffn.routed.post_norm", hidden);
        }
        let Some(shared) = self.shared else { return };
        match self.gated {
            true => list.gated("ffn.shared", TensorClass::Shared, shared.width, false),
            false => list.ungated("ffn.shared", TensorClass::Shared, shared.width, false),
        }
        if self.branch_norms.is_some() {
            list.vector("ffn.shared.post_norm", hidden);
        }
        if shared.gate {
            list.matrix("ffn.shared.scale", TensorClass::Router, 1, hidden);
        }
    }
}

/// Reads `router_scale`.
fn scale_of(table: &mut Table, default: f32) -> Option<Router> {
    let scale = match table.optional("router_scale") {
        Some(value) => value.number("above 0", |it| it > 0.0)?.value as f32,
        None => default,
    };
    Some(Router::Sigmoid { scale })
}

/// Reads a table such as `{ width = 512, gate = "sigmoid" }`.
fn shared(mut table: Table) -> Option<SharedExpert> {
    let width = table.required("width", "width = 512").and_then(|it| it.size(1..=MAX_WIDTH));
    let gates = [("sigmoid", true), ("none", false)];
    let gate = table.required("gate", "gate = \"sigmoid\"").and_then(|it| it.choice(&gates));
    table.finish();
    Some(SharedExpert { width: width?.value, gate: gate?.value })
}

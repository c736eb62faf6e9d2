//! `[ffn]` of the kind `experts`: its keys in MODEL.toml and its tensors.

use crate::blocks::FfnSpec;
use crate::spec::diagnostic::Source;
use crate::spec::model::{ACTIVATIONS, MAX_EXPERTS, MAX_WIDTH};
use crate::spec::reader::Table;
use crate::spec::types::{Activation, TensorClass};
use crate::spec::{LayerTensors, words};

/// A mixture of experts (Shazeer et al., 2017; Fedus et al., 2021). The largest values of the softmax of the
/// router's logits choose the experts and weigh their results.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen per token.
    pub active: usize,
    /// Inner width of one expert.
    pub width: usize,
    /// Activation of every gate.
    pub activation: Activation,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
    /// An expert that every token passes through, if there is one.
    pub shared: Option<SharedExpert>,
}

/// An expert that every token passes through; its result is multiplied by the sigmoid of a projection of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Inner width.
    pub width: usize,
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
        let routers = [("softmax-top-k-renormalised", true), ("softmax-top-k", false)];
        let router = table
            .required("router", "router = \"softmax-top-k-renormalised\"")
            .and_then(|it| it.choice(&routers));
        let shared = match table.optional("shared") {
            Some(value) => value.table().and_then(shared).map(Some),
            None => Some(None),
        };
        table.finish();
        Some(Experts {
            experts: experts?.value,
            active: active?.value,
            width: width?.value,
            activation: activation?.value,
            renormalise: router?.value,
            shared: shared?,
        })
    }

    fn write(&self) -> String {
        let router = if self.renormalise { "softmax-top-k-renormalised" } else { "softmax-top-k" };
        let shared = self.shared.map_or(String::new(), |shared| {
            format!("shared = {{ width = {}, gate = \"sigmoid\" }}\n", shared.width)
        });
        format!(
            "experts = {}\nactive = {}\nwidth = {}\nactivation = \"{}\"\nrouter = \"{router}\"\n{shared}",
            self.experts,
            self.active,
            self.width,
            words::activation(self.activation)
        )
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (width, hidden) = (self.width, list.hidden);
        list.matrix("ffn.router", TensorClass::Router, self.experts, hidden);
        for (part, rows, columns) in [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)]
        {
            list.experts(part, rows, columns, self.experts);
        }
        if let Some(shared) = self.shared {
            list.gated("ffn.shared", TensorClass::Shared, shared.width, false);
            list.matrix("ffn.shared.scale", TensorClass::Router, 1, hidden);
        }
    }
}

/// Reads a table such as `{ width = 512, gate = "sigmoid" }`.
fn shared(mut table: Table) -> Option<SharedExpert> {
    let width = table.required("width", "width = 512").and_then(|it| it.size(1..=MAX_WIDTH));
    let gate = table.required("gate", "gate = \"sigmoid\"").and_then(|it| it.choice(&[("sigmoid", ())]));
    table.finish();
    gate?;
    Some(SharedExpert { width: width?.value })
}

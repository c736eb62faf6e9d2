//! `[ffn]`.

use super::{ACTIVATIONS, MAX_EXPERTS, MAX_WIDTH, flag};
use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table};
use crate::spec::types::*;

/// Reads `[ffn]`.
pub(super) fn ffn(source: &Source, mut table: Table) -> Option<Ffn> {
    let kinds = [("gated", true), ("experts", false)];
    let dense = table.required("kind", "kind = \"gated\"").and_then(|it| it.choice(&kinds))?.value;
    if dense { gated(table) } else { Some(Ffn::Experts(experts(source, table)?)) }
}

/// Reads `[other_ffn.*]`.
pub(super) fn others(source: &Source, mut table: Table) -> Option<Vec<(At<String>, Ffn)>> {
    let mut blocks = Vec::new();
    let mut sound = true;
    for (name, value) in table.entries() {
        let path = value.path().to_owned();
        // The name becomes part of a function's.
        if !name.value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            let message = format!("a block cannot be called {:?}", name.value);
            let help = "lower-case letters, digits and underscores".to_owned();
            source.report(name.span.clone(), &path, message, "this name", help);
            sound = false;
        }
        match value.table().and_then(|table| ffn(source, table)) {
            Some(block) => blocks.push((name, block)),
            None => sound = false,
        }
    }
    sound.then_some(blocks)
}

fn gated(mut table: Table) -> Option<Ffn> {
    let width = table.required("width", "width = 1536").and_then(|it| it.size(1..=MAX_WIDTH));
    let activation =
        table.required("activation", "activation = \"silu\"").and_then(|it| it.choice(&ACTIVATIONS));
    let bias = flag(&mut table, "bias");
    table.finish();
    Some(Ffn::Gated { width: width?.value, activation: activation?.value, bias: bias? })
}

fn experts(source: &Source, mut table: Table) -> Option<Experts> {
    let mut size = |key: &str, example: u32, most: u64| {
        table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
    };
    let experts = size("experts", 256, MAX_EXPERTS);
    let active = size("active", 8, MAX_EXPERTS);
    let width = size("width", 512, MAX_WIDTH);
    if let (Some(experts), Some(active)) = (&experts, &active)
        && active.value > experts.value
    {
        let message = format!("`ffn.active` = {} is more than the {} experts", active.value, experts.value);
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

/// `{ width = 512, gate = "sigmoid" }`.
fn shared(mut table: Table) -> Option<SharedExpert> {
    let width = table.required("width", "width = 512").and_then(|it| it.size(1..=MAX_WIDTH));
    let gate = table.required("gate", "gate = \"sigmoid\"").and_then(|it| it.choice(&[("sigmoid", ())]));
    table.finish();
    gate?;
    Some(SharedExpert { width: width?.value })
}

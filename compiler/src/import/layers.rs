//! Which layers attend and which are delta-nets, and the keys of delta-nets.

use super::families::Family;
use super::keys::{Findings, Keys};
use super::mixture;
use crate::spec::types::DeltaShape;
use serde_json::Value;

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Attention,
    DeltaNet,
}

/// A layer: its mixer, and whether a dense block follows where the rest have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) kind: Kind,
    pub(super) dense: bool,
}

impl Layer {
    /// As the pattern of MODEL.toml has it.
    pub(super) fn name(self) -> &'static str {
        match (self.kind, self.dense) {
            (Kind::Attention, false) => "attention",
            (Kind::DeltaNet, false) => "delta",
            (Kind::Attention, true) => "attention/dense",
            (Kind::DeltaNet, true) => "delta/dense",
        }
    }
}

impl Kind {
    /// What `layer_types` calls it.
    fn of_layer_type(value: &Value) -> Option<Kind> {
        match value.as_str()? {
            "full_attention" => Some(Kind::Attention),
            "linear_attention" => Some(Kind::DeltaNet),
            _ => None,
        }
    }
}

/// Layers between two that attend, the second included, when neither key says it.
const INTERVAL: usize = 4;

/// All layers, of which the pattern is the shortest part that repeats evenly.
pub(super) fn pattern(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    layers: Option<usize>,
) -> Option<Vec<Layer>> {
    let hybrid = family.hybrid.is_some();
    let interval = if hybrid { keys.count_or_null(found, "full_attention_interval")? } else { None };
    let kinds = match keys.given("layer_types") {
        Some(types) => stated(keys, found, types, hybrid, layers)?,
        None if hybrid => {
            if interval.is_none() {
                found.defaulted.push(keys.path("full_attention_interval"));
            }
            let interval = interval.unwrap_or(INTERVAL);
            let kind = |layer: usize| {
                if (layer + 1).is_multiple_of(interval) { Kind::Attention } else { Kind::DeltaNet }
            };
            (0..layers?).map(kind).collect()
        }
        None => vec![Kind::Attention; layers?],
    };
    let dense = match family.experts {
        Some(experts) => mixture::dense_layers(experts, keys, found, kinds.len())?,
        None => vec![false; kinds.len()],
    };
    let layers = kinds.into_iter().zip(dense).map(|(kind, dense)| Layer { kind, dense });
    let layers: Vec<Layer> = layers.collect();
    let repeats = |period: &usize| {
        layers.len().is_multiple_of(*period)
            && layers.iter().zip(layers.iter().cycle().skip(*period)).all(|(a, b)| a == b)
    };
    let period = (1..=layers.len()).find(repeats)?;
    Some(layers[..period].to_vec())
}

/// `layer_types`, which goes before any interval.
fn stated(
    keys: &Keys,
    found: &mut Findings,
    types: &Value,
    hybrid: bool,
    layers: Option<usize>,
) -> Option<Vec<Kind>> {
    let (path, known) = (keys.path("layer_types"), |kind: &Kind| hybrid || *kind == Kind::Attention);
    let kind = |value: &Value| Kind::of_layer_type(value).filter(known).ok_or_else(|| value.clone());
    let read = types.as_array().map_or_else(|| Err(types.clone()), |types| types.iter().map(kind).collect());
    match read {
        Err(other) => {
            let names = if hybrid {
                "\"full_attention\" and \"linear_attention\" are"
            } else {
                "\"full_attention\" is"
            };
            found.problems.push(format!("`{path}` holds {other}: only {names} known"));
            None
        }
        Ok(kinds) => {
            let kinds: Vec<Kind> = kinds;
            if layers.is_some_and(|layers| kinds.len() != layers) {
                let problem = format!(
                    "`{path}` names {} layers, `{}` another number",
                    kinds.len(),
                    keys.path("num_hidden_layers")
                );
                found.problems.push(problem);
                return None;
            }
            Some(kinds)
        }
    }
}

/// Heads and widths of delta-nets.
pub(super) fn delta(keys: &mut Keys, found: &mut Findings) -> Option<DeltaShape> {
    let key_heads = keys.count(found, "linear_num_key_heads", 16);
    let value_heads = keys.count(found, "linear_num_value_heads", 32);
    let key_dim = keys.count(found, "linear_key_head_dim", 128);
    let value_dim = keys.count(found, "linear_value_head_dim", 128);
    let taps = keys.count(found, "linear_conv_kernel_dim", 4);
    let (key_heads, value_heads) = (key_heads?, value_heads?);
    if value_heads % key_heads != 0 {
        let (few, many) = (keys.path("linear_num_key_heads"), keys.path("linear_num_value_heads"));
        let problem = format!("`{few}` = {key_heads} does not divide `{many}` = {value_heads}");
        found.problems.push(problem);
        return None;
    }
    Some(DeltaShape { key_heads, value_heads, key_dim: key_dim?, value_dim: value_dim?, taps: taps? })
}

//! Which layers are attention and which are recurrent.

use super::draft::{DENSE, FULL, LINEAR, Layer};
use super::families::Family;
use super::keys::{Findings, Keys};
use crate::blocks::experts::import as mixture;
use serde_json::Value;

/// The mixer for a value of `layer_types`.
fn of_layer_type(value: &Value) -> Option<&'static str> {
    match value.as_str()? {
        "full_attention" => Some(FULL),
        "linear_attention" => Some(LINEAR),
        _ => None,
    }
}

/// Default interval of attention layers: every fourth layer is one.
pub(super) const INTERVAL: usize = 4;

/// The shortest pattern that repeats evenly over all layers.
pub(super) fn pattern(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    layers: Option<usize>,
) -> Option<Vec<Layer>> {
    let hybrid = family.hybrid.is_some();
    let interval = if hybrid { keys.count_or_null(found, "full_attention_interval")? } else { None };
    let mixers = match keys.given("layer_types") {
        Some(types) => stated(keys, found, types, hybrid, layers)?,
        None if hybrid => {
            if interval.is_none() {
                found.defaulted.push(keys.path("full_attention_interval"));
            }
            let interval = interval.unwrap_or(INTERVAL);
            let mixer = |layer: usize| if (layer + 1).is_multiple_of(interval) { FULL } else { LINEAR };
            (0..layers?).map(mixer).collect()
        }
        None => vec![FULL; layers?],
    };
    let dense = match family.experts {
        Some(experts) => mixture::dense_layers(experts, keys, found, mixers.len())?,
        None => vec![false; mixers.len()],
    };
    let layers = mixers.into_iter().zip(dense);
    let layers = layers.map(|(mixer, dense)| Layer { mixer, ffn: dense.then_some(DENSE) });
    Layer::pattern(&layers.collect::<Vec<_>>())
}

/// Reads `layer_types`, which takes precedence over an interval.
fn stated(
    keys: &Keys,
    found: &mut Findings,
    types: &Value,
    hybrid: bool,
    layers: Option<usize>,
) -> Option<Vec<&'static str>> {
    let (path, known) = (keys.path("layer_types"), |mixer: &&str| hybrid || *mixer == FULL);
    let mixer = |value: &Value| of_layer_type(value).filter(known).ok_or_else(|| value.clone());
    let read = types.as_array().map_or_else(|| Err(types.clone()), |types| types.iter().map(mixer).collect());
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
        Ok(mixers) => {
            let mixers: Vec<&'static str> = mixers;
            if layers.is_some_and(|layers| mixers.len() != layers) {
                let problem = format!(
                    "`{path}` names {} layers, `{}` another number",
                    mixers.len(),
                    keys.path("num_hidden_layers")
                );
                found.problems.push(problem);
                return None;
            }
            Some(mixers)
        }
    }
}

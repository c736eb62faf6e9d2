//! Keys whose defaults depend on the family: heads and their width, the activation, the ids that end an
//! answer.

use super::families::Family;
use super::keys::{Findings, Keys};
use crate::spec::types::Activation;
use serde_json::Value;

/// Activations by transformers' names; several names mean one function.
const ACTIVATIONS: [(&str, Activation); 10] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("relu", Activation::Relu),
];

/// K/V heads; their number divides that of the query heads.
pub(crate) fn kv_heads(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    heads: Option<usize>,
) -> Option<usize> {
    let kv_heads = match (keys.get("num_key_value_heads"), family.kv_heads) {
        (None, Some(default)) => {
            found.defaulted.push(keys.path("num_key_value_heads"));
            Some(default)
        }
        // Only this family takes `null`, for one K/V head per query head.
        (Some(Value::Null), Some(_)) if family.name != "qwen3" => {
            keys.count(found, "num_key_value_heads", heads?)
        }
        _ => keys.count_or_null(found, "num_key_value_heads")?.or(heads),
    };
    if let (Some(heads), Some(kv_heads)) = (heads, kv_heads)
        && heads % kv_heads != 0
    {
        let (few, many) = (keys.path("num_key_value_heads"), keys.path("num_attention_heads"));
        let problem = format!("`{few}` = {kv_heads} does not divide `{many}` = {heads}");
        found.problems.push(problem);
        return None;
    }
    kv_heads
}

/// Width of a head; must be even.
pub(crate) fn head_dim(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    hidden: Option<usize>,
    heads: Option<usize>,
) -> Option<usize> {
    let head_dim = match family.head_dim {
        Some(default) => keys.count(found, "head_dim", default)?,
        None => match keys.count_or_null(found, "head_dim")? {
            Some(head_dim) => head_dim,
            None => {
                let (hidden, heads) = (hidden?, heads?);
                if hidden % heads != 0 {
                    let of = |key| keys.path(key);
                    let (hidden_key, heads_key) = (of("hidden_size"), of("num_attention_heads"));
                    let problem = format!(
                        "`{hidden_key}` = {hidden} is no multiple of `{heads_key}` = {heads}, and there is no \
                         `head_dim`"
                    );
                    found.problems.push(problem);
                    return None;
                }
                hidden / heads
            }
        },
    };
    if head_dim % 2 != 0 {
        let path = keys.path("head_dim");
        found.problems.push(format!("`{path}` is {head_dim}: rotary embeddings need an even one"));
        return None;
    }
    Some(head_dim)
}

/// Reads `hidden_act`.
pub(crate) fn activation(family: &Family, keys: &mut Keys, found: &mut Findings) -> Option<Activation> {
    let path = keys.path("hidden_act");
    let Some(value) = keys.get("hidden_act") else {
        found.defaulted.push(path);
        return Some(Activation::Silu);
    };
    let activation = activation_named(&path, value, found)?;
    if family.hybrid.is_some() && activation != Activation::Silu {
        let why = "it is also applied to the convolutions of delta-nets, where only `silu` is known";
        found.problems.push(format!("`{path}` = {value}: {why}"));
        return None;
    }
    Some(activation)
}

/// The activation that a key's value names.
pub(crate) fn activation_named(path: &str, value: &Value, found: &mut Findings) -> Option<Activation> {
    let known = ACTIVATIONS.iter().find(|(name, _)| value.as_str() == Some(name));
    if known.is_none() {
        let names = ACTIVATIONS.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        found.problems.push(format!("`{path}` = {value}: not a known activation; known are {names}"));
    }
    known.map(|(_, activation)| *activation)
}

/// Reads `eos_token_id` of a config, and that of a wrapper around it.
pub(crate) fn all_stop_ids(
    default: &[u64],
    keys: &mut Keys,
    outer: Option<&mut Keys>,
    found: &mut Findings,
    vocabulary: Option<usize>,
) -> Option<Vec<u64>> {
    let mut ids = stop_ids(default, keys, found, vocabulary);
    if let Some(outer) = outer
        && outer.given("eos_token_id").is_some()
        && let (Some(ids), Some(more)) = (&mut ids, stop_ids(default, outer, found, vocabulary))
    {
        ids.extend(more);
        ids.dedup();
    }
    ids
}

/// Reads `eos_token_id`: each id once, without those outside the vocabulary.
pub(crate) fn stop_ids(
    default: &[u64],
    keys: &mut Keys,
    found: &mut Findings,
    vocabulary: Option<usize>,
) -> Option<Vec<u64>> {
    let ids = match keys.get("eos_token_id") {
        None => {
            found.defaulted.push(keys.path("eos_token_id"));
            Some(default.to_vec())
        }
        Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(Value::as_u64).collect(),
        Some(id) => id.as_u64().map(|id| vec![id]),
    };
    let Some(ids) = ids else {
        let path = keys.path("eos_token_id");
        found.problems.push(format!("`{path}` is neither a token id, a list of them, nor null"));
        return None;
    };
    // Such an id can never be sampled, so it stops nothing. Real configs of cut-down models have it.
    let (inside, outside): (Vec<u64>, Vec<u64>) =
        ids.into_iter().partition(|id| *id < vocabulary.unwrap_or(0) as u64);
    if let (false, Some(vocabulary)) = (outside.is_empty(), vocabulary) {
        let note = format!("eos_token_id {outside:?} is outside the vocabulary of {vocabulary}: left out.");
        found.notes.push(note);
    }
    let mut distinct: Vec<u64> = Vec::new();
    for id in inside {
        if !distinct.contains(&id) {
            distinct.push(id);
        }
    }
    Some(distinct)
}

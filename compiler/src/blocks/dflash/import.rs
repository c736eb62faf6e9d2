//! The published `config.json` of a DFlash drafter, as DFLASH.toml.

use super::spec::{Dflash, DflashAttention, DflashLayer};
use crate::import::dimensions::activation_named;
use crate::import::keys::{Findings, HARMLESS, Keys};
use crate::import::rotary::{self, Turned};
use crate::spec::types::{Compute, Model, Norm, NormWeight, SpecFile};
use monomorph_formats::Format;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The architecture that published configs name.
const ARCHITECTURE: &str = "DFlashDraftModel";

/// Its successor, which has convolutions and selects tokens.
const SUCCESSOR: &str = "DFlash2DraftModel";

/// Keys that exports of another form have, whose tensors have other names.
const SPECULATORS: [&str; 3] = ["speculators_config", "speculators_model_type", "speculators_version"];

/// Stands for an absent object.
static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

/// Whether a config is a drafter's, of this form or another.
pub(crate) fn is_one(config: &Map<String, Value>) -> bool {
    let named = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("DFlash"));
    let architectures = config.get("architectures").and_then(Value::as_array);
    config.contains_key("dflash_config")
        || SPECULATORS.iter().any(|key| config.contains_key(*key))
        || architectures.is_some_and(|names| names.iter().any(named))
}

/// Reads the config of a drafter of `model`, whose tensors are `stored` so and compute in `compute`.
///
/// # Errors
/// Every problem, each naming its key.
pub(crate) fn read(
    config: &Map<String, Value>,
    model: &Model,
    stored: Format,
    compute: Compute,
) -> Result<(Dflash, Findings), Vec<String>> {
    refuse_others(config)?;
    let mut found = Findings::default();
    let mut keys = Keys::new(config, "");
    let dflash = drafter(&mut keys, &mut found, model, stored, compute);
    // A revision's own code, and what Qwen3's configs say of layers that `layer_types` says too.
    keys.harmless(&["auto_map", "num_target_layers", "use_sliding_window", "max_window_layers"]);
    keys.harmless(&["tie_word_embeddings", "eos_token_id"]);
    keys.harmless(&HARMLESS);
    keys.finish(&mut found, "a DFlash drafter");
    match dflash {
        Some(dflash) if found.problems.is_empty() => Ok((dflash, found)),
        _ => Err(found.problems),
    }
}

/// Refuses drafters of other forms by name.
fn refuse_others(config: &Map<String, Value>) -> Result<(), Vec<String>> {
    if let Some(key) = SPECULATORS.iter().find(|key| config.contains_key(**key)) {
        return Err(vec![format!(
            "`{key}`: this is an export of the speculators library, whose tensors have other names: the drafter \
             in its published form is wanted, with `architectures` = [{ARCHITECTURE:?}]"
        )]);
    }
    let architectures = config.get("architectures").unwrap_or(&Value::Null);
    if *architectures == json!([SUCCESSOR]) {
        return Err(vec![format!(
            "`architectures` = [{SUCCESSOR:?}]: its convolutions and its selector are not known; a drafter with \
             [{ARCHITECTURE:?}] is wanted"
        )]);
    }
    if ![json!([ARCHITECTURE]), Value::Null].contains(architectures) {
        let what = format!("`architectures` = {architectures}: only [{ARCHITECTURE:?}] is a DFlash drafter");
        return Err(vec![what]);
    }
    Ok(())
}

fn drafter(
    keys: &mut Keys,
    found: &mut Findings,
    model: &Model,
    stored: Format,
    compute: Compute,
) -> Option<Dflash> {
    keys.harmless(&["architectures"]);
    let inner = match keys.given("dflash_config") {
        Some(Value::Object(inner)) => inner,
        other => {
            let shown = other.map_or("missing".to_owned(), Value::to_string);
            let wanted = "an object with `target_layer_ids` and `mask_token_id` is wanted";
            found.problems.push(format!("`dflash_config` is {shown}: {wanted}"));
            &*EMPTY
        }
    };
    let mut inner = Keys::new(inner, "dflash_config.");
    let block = match keys.count_or_null(found, "block_size")? {
        Some(block) => Some(block),
        None => inner.count(found, "block_size", 16),
    };
    let mask = whole(&mut inner, found, "mask_token_id", model.vocabulary, "ids of the model");
    let taps = taps(&mut inner, found, model);
    same(keys, found, "hidden_size", model.hidden, "width of the model's residual stream");
    same(keys, found, "vocab_size", model.vocabulary, "vocabulary of the model");
    let layers = required(keys, found, "num_hidden_layers");
    let width = required(keys, found, "intermediate_size");
    let [heads, kv_heads, head_dim] =
        ["num_attention_heads", "num_key_value_heads", "head_dim"].map(|key| required(keys, found, key));
    let context = keys.count(found, "max_position_embeddings", model.context);
    let eps = keys.number(found, "rms_norm_eps", 1e-6);
    let norm = eps.map(|eps| Norm { eps: eps as f32, weight: NormWeight::Plain });
    let activation = match keys.given("hidden_act") {
        Some(value) => activation_named("hidden_act", value, found),
        None => activation_named("hidden_act", &json!("silu"), found),
    };
    keys.only(found, "attention_bias", &[json!(false), Value::Null], "layers of drafters have no biases");
    let rotary = rotary::read(keys, found, head_dim, context, Turned::Whole);
    let embedding_scale = match inner.number_or_null(found, "input_embedding_scale")? {
        Some(scale) => Some(scale),
        None => keys.number_or_null(found, "input_embedding_scale")?,
    };
    for key in ["output_multiplier", "final_logit_softcapping"] {
        if keys.number_or_null(found, key)?.is_some() {
            found
                .notes
                .push(format!("{key} keeps the order of logits: which is largest is all that a draft asks."));
        }
    }
    let layers = kinds(keys, &mut inner, found, layers);
    inner.finish(found, "a DFlash drafter");
    let attention = DflashAttention {
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        qk_norm: norm?,
        rotary: rotary?,
    };
    Some(Dflash {
        block: block?,
        mask: u32::try_from(mask?).ok()?,
        taps: taps?,
        attention,
        width: width?,
        activation: activation?,
        norm: norm?,
        embedding_scale: embedding_scale.filter(|scale| *scale != 1.0).map(|scale| scale as f32),
        layers: layers?,
        stored,
        compute,
        names: BTreeMap::new(),
        file: SpecFile { name: String::new(), sha256: String::new() },
    })
}

/// A whole number of at least 1 that must be there: transformers' default is another model's.
fn required(keys: &mut Keys, found: &mut Findings, key: &str) -> Option<usize> {
    let count = keys.count_or_null(found, key)?;
    if count.is_none() {
        found
            .problems
            .push(format!("`{}` is missing: a whole number of at least 1 is wanted", keys.path(key)));
    }
    count
}

/// Checks that a key says what the model does.
fn same(keys: &mut Keys, found: &mut Findings, key: &str, wanted: usize, what: &str) {
    if let Some(count) = required(keys, found, key).filter(|count| *count != wanted) {
        found
            .problems
            .push(format!("`{key}` is {count}: this drafter is another model's, {wanted} is the {what}"));
    }
}

/// A whole number below `most`.
fn whole(keys: &mut Keys, found: &mut Findings, key: &str, most: usize, what: &str) -> Option<usize> {
    let value = keys.given(key);
    let number = value.and_then(Value::as_u64).and_then(|it| usize::try_from(it).ok());
    let number = number.filter(|it| *it < most);
    if number.is_none() {
        let shown = value.map_or("missing".to_owned(), Value::to_string);
        found.problems.push(format!(
            "`{}` is {shown}: 0 to {}, {what}, are wanted",
            keys.path(key),
            most - 1
        ));
    }
    number
}

/// The layers of the model that it reads behind.
fn taps(keys: &mut Keys, found: &mut Findings, model: &Model) -> Option<Vec<usize>> {
    let value = keys.given("target_layer_ids");
    let number = |value: &Value| value.as_u64().and_then(|it| usize::try_from(it).ok());
    let taps: Option<Vec<usize>> =
        value.and_then(Value::as_array).and_then(|list| list.iter().map(number).collect());
    let sound = |taps: &Vec<usize>| {
        !taps.is_empty()
            && taps.is_sorted_by(|a, b| a < b)
            && taps.last().is_some_and(|last| *last < model.layers)
    };
    let taps = taps.filter(sound);
    if taps.is_none() {
        let shown = value.map_or("missing".to_owned(), Value::to_string);
        found.problems.push(format!(
            "`{}` is {shown}: ascending layers of the model are wanted, of 0 to {}",
            keys.path("target_layer_ids"),
            model.layers - 1
        ));
    }
    taps
}

/// `true` or `false`; `None` inside when absent or `null`.
fn flag(keys: &mut Keys, found: &mut Findings, key: &str) -> Option<Option<bool>> {
    match keys.given(key) {
        None => Some(None),
        Some(Value::Bool(causal)) => Some(Some(*causal)),
        Some(other) => {
            found.problems.push(format!("`{}` is {other}: `true` or `false` is wanted", keys.path(key)));
            None
        }
    }
}

/// What rows see in each layer. `layer_types` alone says which layers slide, whatever defaults of Qwen3's
/// config say; those see rows up to their own unless a key says otherwise of all layers.
fn kinds(
    keys: &mut Keys,
    inner: &mut Keys,
    found: &mut Findings,
    layers: Option<usize>,
) -> Option<Vec<DflashLayer>> {
    let (of_all, of_drafter) = (flag(keys, found, "is_causal"), flag(inner, found, "causal"));
    let window = keys.count_or_null(found, "sliding_window");
    let types: Option<Vec<bool>> = match keys.given("layer_types") {
        None => layers.map(|layers| vec![false; layers]),
        Some(value) => {
            let sliding = |value: &Value| match value.as_str() {
                Some("full_attention") => Some(false),
                Some("sliding_attention") => Some(true),
                _ => None,
            };
            let types: Option<Vec<bool>> =
                value.as_array().and_then(|types| types.iter().map(sliding).collect());
            let types = types.filter(|types| layers.is_none_or(|layers| types.len() == layers));
            if types.is_none() {
                found.problems.push(format!(
                    "`layer_types` is {value}: `full_attention` or `sliding_attention` of every layer is wanted"
                ));
            }
            types
        }
    };
    let (said, types, window) = (of_all?.or(of_drafter?), types?, window?);
    if window.is_none() && types.contains(&true) {
        let problem = "`sliding_window` is missing: some of `layer_types` are `sliding_attention`";
        found.problems.push(problem.to_owned());
        return None;
    }
    let kind =
        |sliding: bool| DflashLayer { whole: !said.unwrap_or(sliding), window: window.filter(|_| sliding) };
    Some(types.into_iter().map(kind).collect())
}

//! Reads MODEL.toml.

mod draft;
mod ffn;
mod mixer;
pub(crate) mod rotary;

pub(crate) use mixer::divides;

use super::diagnostic::Source;
use super::reader::{At, Table, Value, list, nearest};
use super::types::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Largest dimensions accepted: far above any model, and low enough that no product overflows.
pub(crate) const MAX_HIDDEN: u64 = 1 << 20;
pub(crate) const MAX_LAYERS: u64 = 1 << 12;
const MAX_VOCABULARY: u64 = 1 << 24;
pub(crate) const MAX_CONTEXT: u64 = 1 << 28;
pub(crate) const MAX_HEADS: u64 = 1 << 12;
pub(crate) const MAX_WIDTH: u64 = 1 << 24;
pub(crate) const MAX_EXPERTS: u64 = 1 << 16;

pub(crate) const ACTIVATIONS: [(&str, Activation); 5] = [
    ("silu", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu-tanh", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
];

/// Reads and checks MODEL.toml.
pub(super) fn read(source: &Source, name: &str, mut root: Table) -> Option<Model> {
    let body = root.table("model").and_then(|table| body(source, table));
    let mixers = root.table("mixer").and_then(|table| mixer::mixers(source, table));
    let ffn = root.table("ffn").and_then(|table| ffn::ffn(source, table));
    let others = match root.optional("other_ffn") {
        Some(value) => value.table().and_then(|table| ffn::others(source, table)),
        None => Some(Vec::new()),
    };
    let draft = match root.optional("draft") {
        Some(value) => value.table().and_then(draft::read).map(Some),
        None => Some(None),
    };
    let protocol = root.table("protocol").and_then(protocol);
    let sampling = root.required("sampling", "[[sampling]]").and_then(|value| sampling(source, value));
    root.finish();

    let pattern_holds = match (&body, &mixers, &others) {
        (Some(body), Some(mixers), Some(others)) => {
            let layers = draft.as_ref().and_then(Option::as_ref);
            let drafts =
                layers.is_none_or(|layers| draft::check(source, layers, mixers, others, ffn.as_ref()));
            let of_draft = layers.map_or(&[][..], |layers| &layers.value);
            check_pattern(source, body, mixers, others, of_draft) && drafts
        }
        _ => false,
    };
    if let (Some(body), Some(Some(layers))) = (&body, &draft)
        && body.around != Around::default()
    {
        let message = "a draft head of such a model is not known".to_owned();
        let help = "with scales, a cap or norms behind blocks there is none: take `[draft]` out".to_owned();
        source.report(layers.span.clone(), "draft.mtp", message, "drafts", help);
        return None;
    }
    if let (Some(body), Some(protocol)) = (&body, &protocol) {
        check_stop_ids(source, body, &protocol.stop_ids);
    }
    let (body, mixers, ffn, others) = (body?, mixers?, ffn?, others?);
    let (protocol, sampling, draft) = (protocol?, sampling?, draft?);
    if !pattern_holds {
        return None;
    }
    let spans: BTreeMap<String, Range<usize>> =
        mixers.iter().map(|(name, _)| (name.value.clone(), name.span.clone())).collect();
    let stop_ids = protocol.stop_ids.iter().map(|id| id.value).collect();
    let model = Model {
        name: name.to_owned(),
        hidden: body.hidden,
        layers: body.layers.value,
        vocabulary: body.vocabulary.value,
        context: body.context,
        tied: body.tied,
        norm: body.norm,
        around: body.around,
        pattern: body.pattern.value.iter().map(|name| layer_kind(&name.value)).collect(),
        mixers: mixers.into_iter().map(|(name, mixer)| (name.value, mixer)).collect(),
        ffn,
        other_ffns: others.into_iter().map(|(name, ffn)| (name.value, ffn)).collect(),
        draft: draft.map(|layers| Draft {
            layers: layers.value.iter().map(|name| layer_kind(&name.value)).collect(),
        }),
        protocol: Protocol {
            stop_ids,
            chat_template: protocol.chat_template,
            tools: protocol.tools,
            reasoning: protocol.reasoning,
        },
        sampling,
    };
    let computes = check_layers(source, &body.pattern, &model);
    (check_shared_names(source, &model, &spans) && computes).then_some(model)
}

/// Values of `[model]`.
struct Body {
    hidden: usize,
    layers: At<usize>,
    vocabulary: At<usize>,
    context: usize,
    tied: bool,
    norm: Norm,
    around: Around,
    pattern: At<Vec<At<String>>>,
}

fn body(source: &Source, mut table: Table) -> Option<Body> {
    let mut size = |key: &str, example: u32, most: u64| {
        table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
    };
    let hidden = size("hidden", 2048, MAX_HIDDEN);
    let layers = size("layers", 24, MAX_LAYERS);
    let vocabulary = size("vocabulary", 49152, MAX_VOCABULARY);
    let context = size("context", 8192, MAX_CONTEXT);
    let tied = table.required("tied", "tied = true").and_then(Value::boolean);
    let example = "norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
    let norm = table.required("norm", example).and_then(norm);
    let around = around(&mut table);
    let pattern = table.required("pattern", "pattern = [\"attention\"]").and_then(|value| {
        let pattern = value.list(Value::string)?;
        if pattern.value.is_empty() {
            let message = "`model.pattern` is empty".to_owned();
            let help = "name the mixer of every layer, or those of a few that repeat".to_owned();
            source.report(pattern.span, "model.pattern", message, "empty", help);
            return None;
        }
        Some(pattern)
    });
    table.finish();
    Some(Body {
        hidden: hidden?.value,
        layers: layers?,
        vocabulary: vocabulary?,
        context: context?.value,
        tied: tied?.value,
        norm: norm?,
        around: around?,
        pattern: pattern?,
    })
}

pub(crate) fn norm(value: Value) -> Option<Norm> {
    let mut table = value.table()?;
    let kind = table.required("kind", "kind = \"rms\"").and_then(|it| it.choice(&[("rms", ())]));
    let weights = [("plain", NormWeight::Plain), ("one-plus", NormWeight::OnePlus)];
    let weight = table.required("weight", "weight = \"plain\"").and_then(|it| it.choice(&weights));
    let small = |it: f64| (0.0..1.0).contains(&it);
    let eps = table.required("eps", "eps = 1e-6").and_then(|it| it.number("from 0 to below 1", small));
    table.finish();
    kind?;
    Some(Norm { eps: eps?.value as f32, weight: weight?.value })
}

/// Reads a norm that has no weight: what is added to its mean square.
pub(crate) fn bare_norm(value: Value) -> Option<f32> {
    let mut table = value.table()?;
    let kind = table.required("kind", "kind = \"rms\"").and_then(|it| it.choice(&[("rms", ())]));
    let weight = table.required("weight", "weight = \"none\"").and_then(|it| it.choice(&[("none", ())]));
    let small = |it: f64| (0.0..1.0).contains(&it);
    let eps = table.required("eps", "eps = 1e-6").and_then(|it| it.number("from 0 to below 1", small));
    table.finish();
    kind.and(weight)?;
    Some(eps?.value as f32)
}

/// Reads the keys of `[model]` that say what surrounds layers.
fn around(table: &mut Table) -> Option<Around> {
    let mut number = |key: &str| match table.optional(key) {
        Some(value) => value.positive().map(|it| Some(it.value as f32)),
        None => Some(None),
    };
    let (embedding_scale, logit_cap) = (number("embedding_scale"), number("logit_cap"));
    let (post_norms, layer_scale) = (flag(table, "post_norms"), flag(table, "layer_scale"));
    Some(Around {
        embedding_scale: embedding_scale?,
        post_norms: post_norms?,
        layer_scale: layer_scale?,
        logit_cap: logit_cap?,
    })
}

/// A flag, false by default.
pub(crate) fn flag(table: &mut Table, key: &str) -> Option<bool> {
    match table.optional(key) {
        Some(value) => Some(value.boolean()?.value),
        None => Some(false),
    }
}

/// Values of `[protocol]`.
struct ReadProtocol {
    stop_ids: Vec<At<u32>>,
    chat_template: Option<String>,
    tools: Option<&'static str>,
    reasoning: Option<&'static str>,
}

fn protocol(mut table: Table) -> Option<ReadProtocol> {
    let stop_ids = table.required("stop_ids", "stop_ids = [2]").and_then(|value| {
        value.list(|id| {
            let At { value, span } = id.integer(0..=u64::from(u32::MAX))?;
            Some(At { value: u32::try_from(value).ok()?, span })
        })
    });
    let chat_template = match table.optional("chat_template") {
        Some(value) => value.string().map(|it| Some(it.value)),
        None => Some(None),
    };
    let mut format = |key: &str, names: &[&'static str]| match table.optional(key) {
        Some(value) => {
            let choices: Vec<_> = names.iter().map(|name| (*name, *name)).collect();
            value.choice(&choices).map(|it| Some(it.value))
        }
        None => Some(None),
    };
    let tools = format("tools", &TOOL_FORMATS);
    let reasoning = format("reasoning", &REASONING_FORMATS);
    table.finish();
    let (stop_ids, chat_template) = (stop_ids?.value, chat_template?);
    Some(ReadProtocol { stop_ids, chat_template, tools: tools?, reasoning: reasoning? })
}

fn sampling(source: &Source, value: Value) -> Option<Vec<SamplingPreset>> {
    let presets = value.list(|value| {
        let mut table = value.table()?;
        let name = table.required("name", "name = \"default\"").and_then(Value::string);
        let warm = |it: f64| (0.0..=100.0).contains(&it);
        let temperature = table.required("temperature", "temperature = 0.7");
        let temperature = temperature.and_then(|it| it.number("from 0 to 100", warm));
        let mut or = |key: &str, default: f64, what: &str, holds: fn(f64) -> bool| match table.optional(key) {
            Some(value) => Some(value.number(what, holds)?.value as f32),
            None => Some(default as f32),
        };
        let top_p = or("top_p", 1.0, "above 0, at most 1", |it| it > 0.0 && it <= 1.0);
        let min_p = or("min_p", 0.0, "from 0 to 1", |it| (0.0..=1.0).contains(&it));
        let repetition_penalty =
            or("repetition_penalty", 1.0, "above 0, at most 100", |it| it > 0.0 && it <= 100.0);
        let top_k = match table.optional("top_k") {
            Some(value) => value.integer(0..=MAX_VOCABULARY).and_then(|it| u32::try_from(it.value).ok()),
            None => Some(0),
        };
        table.finish();
        let (name, temperature) = (name?, temperature?.value as f32);
        let (top_p, top_k, min_p) = (top_p?, top_k?, min_p?);
        let repetition_penalty = repetition_penalty?;
        let preset =
            SamplingPreset { name: name.value, temperature, top_p, top_k, min_p, repetition_penalty };
        Some((name.span, preset))
    })?;
    if presets.value.is_empty() {
        let message = "`sampling` names no preset".to_owned();
        let help = "the first preset is what a request without parameters gets: add one".to_owned();
        source.report(presets.span, "sampling", message, "empty", help);
        return None;
    }
    let names: Vec<(Range<usize>, &str)> =
        presets.value.iter().map(|(span, it)| (span.clone(), it.name.as_str())).collect();
    for (index, (span, name)) in names.iter().enumerate() {
        if names[..index].iter().any(|(_, other)| other == name) {
            let message = format!("two sampling presets are called {name:?}");
            source.report(
                span.clone(),
                "sampling.name",
                message,
                "again",
                "give each its own name".to_owned(),
            );
        }
    }
    Some(presets.value.into_iter().map(|(_, preset)| preset).collect())
}

/// Parses an entry of a pattern: a mixer, or a mixer, a slash, and the block after it.
fn layer_kind(text: &str) -> LayerKind {
    match text.split_once('/') {
        None => LayerKind { mixer: text.to_owned(), ffn: None },
        Some((mixer, ffn)) => LayerKind { mixer: mixer.to_owned(), ffn: Some(ffn.to_owned()) },
    }
}

/// Checks that the pattern gives every layer a mixer, and that some layer, or one of the draft head's, uses
/// every mixer and every named block.
fn check_pattern(
    source: &Source,
    body: &Body,
    mixers: &[(At<String>, Mixer)],
    others: &[(At<String>, Ffn)],
    draft: &[At<String>],
) -> bool {
    let mut holds = true;
    let used = || body.pattern.value.iter().chain(draft).map(|it| layer_kind(&it.value));
    let known = || mixers.iter().map(|(name, _)| name.value.as_str());
    let blocks = || others.iter().map(|(name, _)| name.value.as_str());
    for name in &body.pattern.value {
        let kind = layer_kind(&name.value);
        if !known().any(|it| it == kind.mixer) {
            let near = nearest(&kind.mixer, known()).map(|near| format!("; did you mean {near:?}?"));
            let message = format!("`model.pattern` names {:?}, which is no mixer", kind.mixer);
            let help = format!("the mixers are {}{}", list(known()), near.unwrap_or_default());
            source.report(name.span.clone(), "model.pattern", message, "no such mixer", help);
            holds = false;
        }
        if let Some(block) = kind.ffn.filter(|block| !blocks().any(|it| it == block)) {
            let near = nearest(&block, blocks()).map(|near| format!(": did you mean {near:?}?"));
            let message = format!("`model.pattern` names {block:?}, which is no `[other_ffn.{block}]`");
            let help = format!(
                "after the stroke stands what follows the mixer instead of `[ffn]`{}",
                near.unwrap_or_default()
            );
            source.report(name.span.clone(), "model.pattern", message, "no such block", help);
            holds = false;
        }
    }
    for (name, _) in others {
        if !used().any(|it| it.ffn.as_ref() == Some(&name.value)) {
            let message = format!("no layer uses the block {:?}", name.value);
            let help =
                format!("name it in `model.pattern`, such as \"attention/{}\", or take it out", name.value);
            let key = format!("other_ffn.{}", name.value);
            let mistake = source.mistake(name.span.clone(), &key, message, "unused", help);
            source.sink.push(mistake.also(body.pattern.span.clone(), "the pattern"));
            holds = false;
        }
    }
    for (name, _) in mixers {
        if !used().any(|it| it.mixer == name.value) {
            let message = format!("no layer uses the mixer {:?}", name.value);
            let help = "name it in `model.pattern` or take it out".to_owned();
            let mistake =
                source.mistake(name.span.clone(), &format!("mixer.{}", name.value), message, "unused", help);
            source.sink.push(mistake.also(body.pattern.span.clone(), "the pattern"));
            holds = false;
        }
    }
    let (length, layers) = (body.pattern.value.len(), body.layers.value);
    if layers % length != 0 {
        let message = format!("`model.pattern` of {length} does not repeat evenly over {layers} layers");
        let help = "its length must divide the layers; where it does not, write all of them out".to_owned();
        let mistake = source.mistake(
            body.pattern.span.clone(),
            "model.pattern",
            message,
            &format!("{length} long"),
            help,
        );
        source.sink.push(mistake.also(body.layers.span.clone(), "the layers"));
        holds = false;
    }
    holds
}

/// Checks that every layer computes something, and some layer mixes tokens.
fn check_layers(source: &Source, pattern: &At<Vec<At<String>>>, model: &Model) -> bool {
    let empty = pattern.value.iter().filter(|name| {
        let kind = layer_kind(&name.value);
        !model.mixers[&kind.mixer].mixes() && !model.ffn_of(&kind).follows()
    });
    let mut holds = true;
    for name in empty {
        let message = format!("layers {:?} have neither a mixer nor a feed-forward block", name.value);
        let help = "give them one of the two, such as \"none/dense\" with `[other_ffn.dense]`".to_owned();
        source.report(name.span.clone(), "model.pattern", message, "nothing to compute", help);
        holds = false;
    }
    if !model.layer_mixers().any(Mixer::mixes) {
        let message = "no layer has a mixer".to_owned();
        let help = "tokens would know nothing of each other: name a mixer that mixes".to_owned();
        source.report(pattern.span.clone(), "model.pattern", message, "no mixer", help);
        holds = false;
    }
    holds
}

/// Whether tensors of these mixers may have two shapes under one name: where files hold each by itself. Of
/// gated attention a tensor holds queries and gates, by heads of one width.
fn may_differ(mixers: [&Mixer; 2]) -> bool {
    mixers.iter().all(|mixer| matches!(mixer, Mixer::Attention(attention) if !attention.gate))
}

/// Checks that mixers of one kind, which share tensor names, agree on shapes, unless they [`may_differ`].
fn check_shared_names(source: &Source, model: &Model, spans: &BTreeMap<String, Range<usize>>) -> bool {
    let tensors = super::tensors(model);
    for (index, tensor) in tensors.iter().enumerate() {
        let Some(other) = tensors[..index].iter().find(|other| other.name == tensor.name) else { continue };
        let mixer_of = |layers: &Option<Vec<usize>>| {
            let layer = layers.as_ref().and_then(|layers| layers.first())?;
            let name = &model.layer(*layer).mixer;
            Some((name.clone(), spans.get(name)?.clone()))
        };
        let (Some((name, span)), Some((other, other_span))) =
            (mixer_of(&tensor.layers), mixer_of(&other.layers))
        else {
            continue;
        };
        if may_differ([&name, &other].map(|name| &model.mixers[name])) {
            continue;
        }
        let message = format!("the mixers {other:?} and {name:?} give {:?} two shapes", tensor.name);
        let help = "mixers of one kind share their tensors' names: give them the same sizes".to_owned();
        let mistake = source.mistake(span, &format!("mixer.{name}"), message, "differs", help);
        source.sink.push(mistake.also(other_span, "from this one"));
        return false;
    }
    true
}

fn check_stop_ids(source: &Source, body: &Body, stop_ids: &[At<u32>]) {
    for id in stop_ids {
        if id.value as usize >= body.vocabulary.value {
            let key = "protocol.stop_ids";
            let message = format!("stop id {} is outside the vocabulary", id.value);
            let help = format!("ids run from 0 to {}", body.vocabulary.value - 1);
            let mistake = source.mistake(id.span.clone(), key, message, "no such token", help);
            source.sink.push(mistake.also(body.vocabulary.span.clone(), "the vocabulary"));
        }
    }
}

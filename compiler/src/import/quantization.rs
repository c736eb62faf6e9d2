//! `quantization_config`: which modules of a checkpoint are codes with scales, in the forms that releases
//! use.

use super::keys::{Findings, Keys};
use super::patterns::Pattern;
use crate::spec::types::{ClassScales, ScaleForm};
use monomorph_formats::Format;
use serde_json::{Map, Value, json};

/// Storage of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    pub(super) format: Format,
    /// Scales beside the codes, if any.
    pub(super) scales: Option<ClassScales>,
}

impl Storage {
    /// Unquantised floats.
    pub(super) fn plain(format: Format) -> Storage {
        Storage { format, scales: None }
    }

    fn codes(form: ScaleForm, scales: Format) -> Storage {
        Storage { format: form.codes(), scales: Some(ClassScales { form, format: scales }) }
    }
}

/// Storage of a checkpoint's tensors according to its config.
#[derive(Clone, Debug)]
pub(super) struct Quantization {
    /// Format of unquantised tensors.
    floats: Format,
    /// The first pattern that matches a module decides.
    groups: Vec<(Pattern, Storage)>,
    /// Modules that stay unquantised.
    ignored: Vec<Pattern>,
}

impl Quantization {
    /// Storage of a module's weight. `None` is a tensor outside products, which no tool quantises.
    pub(super) fn of(&self, module: Option<&str>) -> Storage {
        let codes =
            module.filter(|module| !self.ignored.iter().any(|it| it.names(module))).and_then(|module| {
                self.groups.iter().find(|(pattern, _)| pattern.names(module)).map(|(_, storage)| *storage)
            });
        codes.unwrap_or(Storage::plain(self.floats))
    }
}

/// Reads the config; the inner `None` means that there is none.
pub(super) fn read(keys: &mut Keys, found: &mut Findings) -> Option<Option<Quantization>> {
    let floats = [keys.given("dtype"), keys.given("torch_dtype")].into_iter().flatten().next();
    let floats = match floats.and_then(Value::as_str) {
        Some("float32") => Format::F32,
        Some("float16") => Format::F16,
        _ => Format::Bf16,
    };
    let path = keys.path("quantization_config");
    let map = match keys.given("quantization_config") {
        None => return Some(None),
        Some(Value::Object(map)) => map,
        Some(other) => {
            found.problems.push(format!("`{path}` is {other}: an object or null is wanted"));
            return None;
        }
    };
    let mut inner = Keys::new(map, &format!("{path}."));
    let (groups, ignored) = match map.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => fp8(&mut inner, found),
        Some("modelopt") => modelopt(&mut inner, found),
        Some("compressed-tensors") => compressed_tensors(&mut inner, found),
        _ => {
            let shown = map.get("quant_method").map_or("missing".to_owned(), Value::to_string);
            let known = "known are `fp8`, `modelopt` and `compressed-tensors`";
            found.problems.push(format!("`{path}.quant_method` is {shown}: {known}"));
            return None;
        }
    };
    inner.harmless(&["quant_method"]);
    inner.finish(found, "a quantisation");
    Some(Some(Quantization { floats, groups: groups?, ignored: ignored? }))
}

type Read = (Option<Vec<(Pattern, Storage)>>, Option<Vec<Pattern>>);

/// Blocks of 128 x 128 with a scale each, as in Qwen's releases.
fn fp8(keys: &mut Keys, found: &mut Findings) -> Read {
    keys.only(found, "fmt", &[json!("e4m3"), Value::Null], "only `e4m3` is known");
    keys.only(found, "scale_fmt", &[Value::Null], "scales that are floats are known");
    let size = keys.get("weight_block_size");
    if size != Some(&json!([128, 128])) {
        let shown = size.map_or("missing".to_owned(), Value::to_string);
        let path = keys.path("weight_block_size");
        found.problems.push(format!("`{path}` is {shown}: only [128, 128] is known"));
        return (None, None);
    }
    // Activations are not quantised here.
    keys.harmless(&["activation_scheme"]);
    let end = |text: &str| Some(Pattern::End(text.to_owned()));
    let ignored = match keys.given("modules_to_not_convert") {
        // transformers' default.
        None => Some(vec![Pattern::Module("lm_head".to_owned())]),
        Some(_) => patterns(keys, found, "modules_to_not_convert", end),
    };
    found.notes.push("The scales of fp8 blocks are taken to be bf16.".to_owned());
    (Some(vec![(Pattern::All, Storage::codes(ScaleForm::Block128, Format::Bf16))]), ignored)
}

/// Configs of NVIDIA's Model Optimizer: one algorithm for all layers, or one for each named layer.
fn modelopt(keys: &mut Keys, found: &mut Findings) -> Read {
    // The quant spec has its own key for the cache's format.
    keys.harmless(&["producer", "kv_cache_scheme", "kv_cache_quant_algo", "quant_library"]);
    let glob = |text: &str| Some(Pattern::glob(text));
    let mut ignored = patterns(keys, found, "ignore", glob);
    if let (Some(ignored), Some(more)) = (&mut ignored, patterns(keys, found, "exclude_modules", glob)) {
        ignored.extend(more);
    }
    let path = keys.path("quant_algo");
    let group_size = keys.count_or_null(found, "group_size");
    let groups = match keys.given("quant_algo").and_then(Value::as_str) {
        Some("MIXED_PRECISION") if keys.given("quantized_layers").is_some() => {
            keys.harmless(&["config_groups"]);
            layers(keys, found)
        }
        Some("MIXED_PRECISION") | None => groups(keys, found, ScaleForm::Modelopt),
        Some(name) => {
            keys.harmless(&["config_groups", "quantized_layers"]);
            let storage = algorithm(found, &path, name, group_size.flatten());
            storage.map(|storage| vec![(Pattern::All, storage)])
        }
    };
    (groups, ignored)
}

/// Reads `quantized_layers`: an algorithm by module.
fn layers(keys: &mut Keys, found: &mut Findings) -> Option<Vec<(Pattern, Storage)>> {
    let path = keys.path("quantized_layers");
    let Some(Value::Object(layers)) = keys.given("quantized_layers") else {
        found.problems.push(format!("`{path}` is no object: algorithms by module are wanted"));
        return None;
    };
    let layer = |(module, settings): (&String, &Value)| {
        let path = format!("{path}.{module}.quant_algo");
        let size = settings.get("group_size").and_then(Value::as_u64).map(|size| size as usize);
        let name = settings.get("quant_algo").and_then(Value::as_str).unwrap_or("missing");
        Some((Pattern::glob(module), algorithm(found, &path, name, size)?))
    };
    layers.iter().map(layer).collect()
}

/// The storage of one of Model Optimizer's algorithms.
fn algorithm(found: &mut Findings, path: &str, name: &str, group_size: Option<usize>) -> Option<Storage> {
    match (name, group_size) {
        ("NVFP4" | "W4A16_NVFP4", None | Some(16)) => Some(Storage::codes(ScaleForm::Modelopt, Format::F32)),
        ("FP8", None) => Some(Storage::codes(ScaleForm::Tensor, Format::F32)),
        _ => {
            let sized = group_size.map_or(String::new(), |size| format!(" with groups of {size}"));
            let known = "known are `FP8`, and `NVFP4` and `W4A16_NVFP4` with groups of 16";
            found.problems.push(format!("`{path}` is {name}{sized}: {known}"));
            None
        }
    }
}

/// Configs of compressed-tensors, of which `nvfp4-pack-quantized` is known.
fn compressed_tensors(keys: &mut Keys, found: &mut Findings) -> Read {
    let formats = [json!("nvfp4-pack-quantized")];
    keys.only(found, "format", &formats, "only `nvfp4-pack-quantized` is known");
    keys.only(
        found,
        "quantization_status",
        &[json!("compressed"), Value::Null],
        "only `compressed` is known",
    );
    let none = "only none is known";
    keys.only(found, "sparsity_config", &[json!({}), Value::Null], none);
    keys.only(found, "transform_config", &[json!({}), Value::Null], none);
    keys.harmless(&["version", "kv_cache_scheme", "global_compression_ratio"]);
    let mut bad = Vec::new();
    let ignored = patterns(keys, found, "ignore", |text| expression(text, &mut bad));
    name_expressions(found, &keys.path("ignore"), &bad);
    (groups(keys, found, ScaleForm::CompressedTensors), ignored)
}

/// Reads `config_groups`: formats by the modules that `targets` name.
fn groups(keys: &mut Keys, found: &mut Findings, nvfp4: ScaleForm) -> Option<Vec<(Pattern, Storage)>> {
    let path = keys.path("config_groups");
    let Some(Value::Object(groups)) = keys.given("config_groups") else {
        found.problems.push(format!("`{path}` is no object: it says what is quantised"));
        return None;
    };
    let mut all = Vec::new();
    for (name, group) in groups {
        let weights = group.get("weights").and_then(Value::as_object);
        let storage = weights.and_then(|weights| of_weights(weights, nvfp4));
        let Some(storage) = storage else {
            let shown = group.get("weights").unwrap_or(&Value::Null);
            let known = "known are floats of 4 bits in groups of 16, and with Model Optimizer floats of 8 bits with \
                         one scale";
            found.problems.push(format!("`{path}.{name}.weights` is {shown}: {known}"));
            return None;
        };
        let mut bad = Vec::new();
        let inner = group.as_object()?;
        let prefix = format!("{path}.{name}.");
        let targets =
            patterns(&mut Keys::new(inner, &prefix), found, "targets", |text| expression(text, &mut bad))?;
        name_expressions(found, &format!("{prefix}targets"), &bad);
        all.extend(targets.into_iter().map(|pattern| (pattern, storage)));
    }
    // Named modules take precedence over the rest.
    all.sort_by_key(|(pattern, _)| matches!(pattern, Pattern::All));
    Some(all)
}

fn of_weights(weights: &Map<String, Value>, nvfp4: ScaleForm) -> Option<Storage> {
    let is = |key: &str, value: Value| weights.get(key) == Some(&value);
    let none = |key: &str| weights.get(key).is_none_or(Value::is_null);
    if !is("type", json!("float")) {
        return None;
    }
    if is("num_bits", json!(4)) && is("group_size", json!(16)) {
        return Some(Storage::codes(nvfp4, Format::F32));
    }
    let whole = none("strategy") || is("strategy", json!("tensor"));
    let tensor = is("num_bits", json!(8)) && none("group_size") && whole;
    (tensor && nvfp4 == ScaleForm::Modelopt).then_some(Storage::codes(ScaleForm::Tensor, Format::F32))
}

/// A class of modules, a name, or `re:` and an expression; anything else goes to `bad`.
fn expression(text: &str, bad: &mut Vec<String>) -> Option<Pattern> {
    match text.strip_prefix("re:") {
        None if text == "Linear" => Some(Pattern::All),
        None => Some(Pattern::glob(text)),
        Some(regex) => Pattern::regex(regex).or_else(|| {
            bad.push(text.to_owned());
            None
        }),
    }
}

fn name_expressions(found: &mut Findings, path: &str, bad: &[String]) {
    for text in bad {
        let known = "of regular expressions only `.`, `.*`, `\\d+`, `^` and `$` are known";
        found.problems.push(format!("`{path}` holds {text:?}: {known}"));
    }
}

/// A list of patterns; empty when absent.
fn patterns(
    keys: &mut Keys,
    found: &mut Findings,
    key: &str,
    mut pattern: impl FnMut(&str) -> Option<Pattern>,
) -> Option<Vec<Pattern>> {
    let Some(value) = keys.given(key) else { return Some(Vec::new()) };
    let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let Some(texts) = texts else {
        let path = keys.path(key);
        found.problems.push(format!("`{path}` is {value}: a list of names is wanted"));
        return None;
    };
    texts.into_iter().map(&mut pattern).collect()
}

//! Parameters common to all endpoints: sampling, limits, stops, streaming.

use super::biases::BiasParams;
use super::compaction::Compacted;
use super::described::described;
use super::editing::Edited;
use super::fields::{Fields, Numbers, integer, wrong_type};
use super::format::Format;
use super::limits::RequestLimits;
use super::routers;
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_of, array, at_most, integer as integers, of, only};
use crate::process::random::random_seed;
use monomorph_model::SamplingPreset;
use monomorph_sampling::Sampling;
use serde_json::{Value, json};

/// Most stop strings of one request (OpenAI allows 4).
pub(crate) const MAX_STOPS: usize = 16;
/// Longest stop string in bytes: text of this length may be held back.
pub(crate) const MAX_STOP_BYTES: usize = 1024;

/// Range of the temperature.
pub(crate) const TEMPERATURE: Numbers = Numbers::within(0.0, 2.0);
/// Range of `top_p`.
pub(crate) const TOP_P: Numbers = Numbers::above(0.0, 1.0);

/// Most answers to one request, as OpenAI has it.
pub(crate) const MAX_CHOICES: i64 = 128;

/// The common part of a request.
#[derive(Debug)]
pub(crate) struct GenerationParams {
    /// The model asked for; absent means the only one there is.
    pub(crate) model: Option<String>,
    /// Whether to stream the answer.
    pub(crate) stream: bool,
    /// Whether the stream ends with the usage.
    pub(crate) include_usage: bool,
    /// Answers to the same prompt.
    pub(crate) choices: usize,
    /// How many are generated, of which those are the best; absent means no more.
    pub(crate) best_of: Option<usize>,
    /// Most tokens to generate; absent means the endpoint's default.
    pub(crate) max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub(crate) sampling: Sampling,
    /// Whether the prompt's log-probabilities are returned, and with how many alternatives.
    pub(crate) prompt_logprobs: Option<u8>,
    /// Biases of logits.
    pub(crate) biases: BiasParams,
    /// Whether the answer says its tokens' ids, and its prompt's.
    pub(crate) token_ids: bool,
    /// Strings that end the answer, and are not part of it.
    pub(crate) stops: Vec<String>,
    /// Further ids that end the answer.
    pub(crate) stop_ids: Vec<u32>,
    /// Whether to ignore the model's own stop ids.
    pub(crate) ignore_eos: bool,
    /// The answer's format, if any.
    pub(crate) format: Option<Format>,
    /// Priority, as in vLLM: lower is earlier.
    pub(crate) priority: i64,
    /// The client's `user`.
    pub(crate) user: Option<String>,
    /// Budget of reasoning in tokens, and its field.
    pub(crate) reasoning_budget: Option<(&'static str, usize)>,
    /// Fields of the body that change no answer here.
    pub(crate) ignored: Vec<&'static str>,
    /// Paths of the parts of tools' schemas that do not constrain arguments.
    pub(crate) loose: Vec<String>,
    /// Whether a conversation that is too long is shortened, if the request says.
    pub(crate) compacts: Option<bool>,
    /// What was left out of it.
    pub(crate) compacted: Option<Compacted>,
    /// What the edits took that the request asks for.
    pub(crate) edited: Option<Vec<Edited>>,
}

impl GenerationParams {
    /// What a request that names no field asks for, with a seed of its own.
    pub(crate) fn of_defaults(limits: &RequestLimits) -> GenerationParams {
        let sampling = Sampling { seed: random_seed(), ..limits.sampling.clone() };
        GenerationParams {
            model: None,
            stream: false,
            include_usage: false,
            choices: 1,
            best_of: None,
            max_tokens: None,
            sampling,
            prompt_logprobs: None,
            biases: BiasParams::default(),
            token_ids: false,
            stops: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            format: None,
            priority: 0,
            user: None,
            reasoning_budget: None,
            ignored: Vec::new(),
            loose: Vec::new(),
            compacts: None,
            compacted: None,
            edited: None,
        }
    }

    /// Answers that are generated to a prompt.
    pub(crate) fn generated(&self) -> usize {
        self.best_of.unwrap_or(self.choices)
    }

    /// Reads the common fields of a body.
    pub(crate) fn read(fields: &mut Fields, limits: &RequestLimits) -> Result<GenerationParams, ApiError> {
        GenerationParams::of_at_least(1, fields, limits)
    }

    /// As [`GenerationParams::read`], for an answer of at least `least` tokens.
    pub(crate) fn of_at_least(
        least: i64,
        fields: &mut Fields,
        limits: &RequestLimits,
    ) -> Result<GenerationParams, ApiError> {
        let mut params = GenerationParams::of_defaults(limits);
        params.model = fields.string("model")?.map(str::to_owned);
        params.stream = fields.boolean("stream")?.unwrap_or(false);
        params.include_usage = read_stream_options(fields, params.stream)?;
        params.max_tokens = read_max_tokens(fields, least, limits)?;
        params.sampling = read_sampling(fields, limits)?;
        params.stops = read_stops(fields, "stop")?;
        params.stop_ids = read_stop_ids(fields, limits)?;
        params.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        params.format = Format::read(fields)?;
        if params.format.is_some() && params.ignore_eos {
            let message =
                "`ignore_eos` contradicts the format that is asked for: an answer that is complete ends";
            return Err(ApiError::field("ignore_eos", message));
        }
        params.priority =
            fields.about("The lower, the earlier.").integer("priority", i64::MIN..=i64::MAX)?.unwrap_or(0);
        params.user = fields.string("user")?.map(str::to_owned);
        params.choices =
            fields.about("Answers, of the seeds from `seed` on.").integer("n", 1..=MAX_CHOICES)?.unwrap_or(1)
                as usize;
        params.biases = BiasParams::read(fields, limits)?;
        params.token_ids = fields.boolean("return_token_ids")?.unwrap_or(false);
        routers::read_common(fields)?;
        fields.harmless(&["metadata", "store", "service_tier", "safety_identifier"]);
        fields.harmless(&["prompt_cache_key", "prompt_cache_retention"]);
        Ok(params)
    }
}

fn read_stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    fields.about("With `stream` only.").of(|| of("StreamOptions"));
    let Some(value) = fields.value("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::field(
            "stream_options",
            "`stream_options` is only allowed when `stream` is true",
        ));
    }
    read_options(value)
}

fn read_options(value: &Value) -> Result<bool, ApiError> {
    let mut options = Fields::new("stream_options", value)?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    options.harmless(&["include_obfuscation"]);
    options.finish()?;
    Ok(include_usage)
}

/// The schema of `stream_options`.
pub(crate) fn stream_options() -> Value {
    described("stream_options", [json!({})], read_options)
}

/// Most tokens of an answer, in the field `name`, and no fewer than `least`.
pub(crate) fn read_length(
    fields: &mut Fields,
    name: &'static str,
    least: i64,
    limits: &RequestLimits,
) -> Result<Option<usize>, ApiError> {
    fields.of(|| integers(least..=limits.context as i64));
    let Some(tokens) = fields.integer(name, least..=i64::MAX)? else { return Ok(None) };
    if tokens as u64 > limits.context as u64 {
        let context = limits.context;
        let message = format!("`{name}` is {tokens}, and this server's context is {context} tokens");
        return Err(ApiError { code: "context_length_exceeded", ..ApiError::field(name, message) });
    }
    Ok(Some(tokens as usize))
}

/// Numbers, where they are given.
pub(crate) fn read_numbers<const N: usize>(
    fields: &mut Fields,
    targets: [(&'static str, Numbers, &mut f32); N],
) -> Result<(), ApiError> {
    for (name, of, target) in targets {
        if let Some(number) = fields.number(name, of)? {
            *target = number;
        }
    }
    Ok(())
}

/// `max_completion_tokens` is the newer name of `max_tokens`.
fn read_max_tokens(
    fields: &mut Fields,
    least: i64,
    limits: &RequestLimits,
) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        if name != "max_tokens" {
            fields.about("The newer name of `max_tokens`.");
        }
        let Some(tokens) = read_length(fields, name, least, limits)? else { continue };
        if found.is_some_and(|earlier| earlier != tokens) {
            return Err(wrong!(name, "contradicts `max_tokens`; give one of them"));
        }
        found = Some(tokens);
    }
    Ok(found)
}

/// Absent parameters are the server's defaults.
fn read_sampling(fields: &mut Fields, limits: &RequestLimits) -> Result<Sampling, ApiError> {
    let mut sampling = limits.sampling.clone();
    read_parameters(fields, &mut sampling)?;
    // A seed is a bit pattern: negative ones are as good as others.
    sampling.seed = match fields.integer("seed", i64::MIN..=i64::MAX)? {
        Some(seed) => seed as u64,
        None => random_seed(),
    };
    sampling.validate().map_err(|(field, what)| ApiError::at(field, what))?;
    if limits.on_gpu && sampling.is_adaptive() {
        return Err(ApiError::unsupported("dynatemp_range", NOT_ON_GPU));
    }
    Ok(sampling)
}

/// What a GPU's sampler does not do.
pub(super) const NOT_ON_GPU: &str = "a temperature that follows the entropy, on a server for GPUs";

/// The sampling parameters that are given, over those that are not.
pub(super) fn read_parameters(fields: &mut Fields, sampling: &mut Sampling) -> Result<(), ApiError> {
    let penalty = Numbers::within(-2.0, 2.0);
    let targets: [(&'static str, Numbers, &mut f32); 8] = [
        ("temperature", TEMPERATURE, &mut sampling.temperature),
        ("top_p", TOP_P, &mut sampling.top_p),
        ("min_p", Numbers::within(0.0, 1.0), &mut sampling.min_p),
        ("repetition_penalty", Numbers::above(0.0, f32::MAX), &mut sampling.repetition_penalty),
        ("presence_penalty", penalty, &mut sampling.presence_penalty),
        ("frequency_penalty", penalty, &mut sampling.frequency_penalty),
        ("dynatemp_range", Numbers::within(0.0, 2.0), &mut sampling.dynatemp_range),
        ("dynatemp_exponent", Numbers::within(0.0, 100.0), &mut sampling.dynatemp_exponent),
    ];
    read_numbers(fields, targets)?;
    if let Some(top_k) = fields.about("0 and -1: all.").integer("top_k", -1..=i64::from(u32::MAX))? {
        // -1 means "all" elsewhere.
        sampling.top_k = u32::try_from(top_k).unwrap_or(0);
    }
    // -1 means "off" elsewhere, too.
    let range = Numbers::within(0.0, f32::MAX);
    fields.about("0 and -1: all.").of(|| any_of([range.schema(), only(-1)]));
    let off = fields.value("top_n_sigma").and_then(Value::as_f64) == Some(-1.0);
    if off {
        sampling.top_n_sigma = 0.0;
    } else if let Some(sigmas) = fields.number("top_n_sigma", range)? {
        sampling.top_n_sigma = sigmas;
    }
    Ok(())
}

/// The sampling parameters of a preset; greedy without one.
pub(crate) fn preset_sampling(preset: Option<&SamplingPreset>) -> Sampling {
    let Some(preset) = preset else { return Sampling::default() };
    Sampling {
        temperature: preset.temperature,
        top_p: preset.top_p,
        top_k: preset.top_k,
        min_p: preset.min_p,
        repetition_penalty: preset.repetition_penalty,
        ..Sampling::default()
    }
}

/// Stop strings, one or several, of a field.
pub(crate) fn read_stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, ApiError> {
    let one = |path: &str, value: &Value| match value {
        Value::String(stop) if stop.is_empty() => Err(wrong!(path, "must not be an empty string")),
        Value::String(stop) if stop.len() > MAX_STOP_BYTES => {
            Err(wrong!(path, "has {} bytes; at most {MAX_STOP_BYTES}", stop.len()))
        }
        Value::String(stop) => Ok(stop.clone()),
        other => Err(wrong_type(path, "a string", other)),
    };
    fields.of(|| {
        let one = json!({"type": "string", "minLength": 1, "maxLength": MAX_STOP_BYTES});
        any_of([one.clone(), at_most(MAX_STOPS, one)])
    });
    match fields.value(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(stops)) if stops.len() > MAX_STOPS => {
            Err(wrong!(name, "has {} strings; at most {MAX_STOPS}", stops.len()))
        }
        Some(Value::Array(stops)) => {
            stops.iter().enumerate().map(|(at, stop)| one(&format!("{name}[{at}]"), stop)).collect()
        }
        Some(stop @ Value::String(_)) => Ok(vec![one(name, stop)?]),
        Some(other) => Err(wrong_type(name, "a string or an array of strings", other)),
    }
}

fn read_stop_ids(fields: &mut Fields, limits: &RequestLimits) -> Result<Vec<u32>, ApiError> {
    match fields.of(|| ids(limits.vocabulary)).value("stop_token_ids") {
        None => Ok(Vec::new()),
        Some(value) => token_ids("stop_token_ids", value, limits.vocabulary),
    }
}

/// The schema of such an array.
pub(crate) fn ids(vocabulary: usize) -> Value {
    array(integers(0..=vocabulary.saturating_sub(1) as i64))
}

/// An array of token ids below `vocabulary`.
pub(crate) fn token_ids(path: &str, value: &Value, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let Value::Array(ids) = value else { return Err(wrong_type(path, "an array of token ids", value)) };
    let last = i64::from(u32::try_from(vocabulary.saturating_sub(1)).unwrap_or(u32::MAX));
    let id = |(at, id): (usize, &Value)| integer(&format!("{path}[{at}]"), id, 0..=last).map(|id| id as u32);
    ids.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deviations_are_off_at_zero_and_below() {
        let limits = RequestLimits {
            context: 100,
            vocabulary: 10,
            on_gpu: false,
            images: false,
            sampling: Sampling::GREEDY,
        };
        let read = |sigmas: Value| {
            let body = json!({"top_n_sigma": sigmas});
            let params = GenerationParams::read(&mut Fields::new("", &body)?, &limits)?;
            Ok::<f32, ApiError>(params.sampling.top_n_sigma)
        };
        for (given, taken) in [(json!(1.5), 1.5), (json!(0), 0.0), (json!(-1), 0.0), (json!(null), 0.0)] {
            assert_eq!(read(given).expect("it is taken"), taken);
        }
        assert_eq!(read(json!(-2)).expect_err("refused").param.as_deref(), Some("top_n_sigma"));
    }

    #[test]
    fn the_entropy_is_followed_where_there_is_one_to_follow() {
        let read = |on_gpu: bool, body: Value| {
            let limits = RequestLimits {
                context: 100,
                vocabulary: 10,
                on_gpu,
                images: false,
                sampling: Sampling::GREEDY,
            };
            GenerationParams::read(&mut Fields::new("", &body)?, &limits).map(|params| params.sampling)
        };
        let body = json!({"temperature": 0.8, "dynatemp_range": 0.5, "dynatemp_exponent": 2});
        let sampling = read(false, body.clone()).expect("a CPU's sampler does");
        assert_eq!((sampling.dynatemp_range, sampling.dynatemp_exponent), (0.5, 2.0));
        let error = read(true, body).expect_err("a GPU's does not");
        assert_eq!((error.param.as_deref(), error.code), (Some("dynatemp_range"), "unsupported_parameter"));
        // Where it changes nothing it is taken: off, or greedy.
        for body in [json!({"temperature": 0.8, "dynatemp_range": 0}), json!({"dynatemp_range": 1})] {
            assert!(!read(true, body).expect("it is off").is_adaptive());
        }
    }
}

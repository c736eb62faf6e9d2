//! A request to `/v1/responses`.

use super::items::{instructions_first, messages_of};
use super::store::{Store, Stored};
use crate::error::{ApiError, wrong};
use crate::openai::chat::read_effort;
use crate::openapi::schema::{any, any_object, any_of, array, of, some, text, words};
use crate::process::random::random_seed;
use crate::request::conversation::{Conversation, Reasoning, Tools};
use crate::request::described::described;
use crate::request::fields::{Fields, Neutral, wrong_type, wrong_word};
use crate::request::format::{read_typed, typed};
use crate::request::generation::{GenerationParams, TEMPERATURE, TOP_P, read_length, read_numbers};
use crate::request::limits::RequestLimits;
use crate::request::routers;
use crate::request::tools::{FunctionPlace, read_choice, read_given, tool_name, tool_of};
use monomorph_sampling::MAX_TOP_LOGPROBS;
use serde_json::{Map, Value, json};

/// Whether input that is too long is shortened, as OpenAI has it.
pub(crate) const TRUNCATIONS: [&str; 2] = ["auto", "disabled"];
/// What `include` calls log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request, checked.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    /// Parameters of the answer.
    pub(crate) params: GenerationParams,
    /// The conversation to answer.
    pub(crate) conversation: Conversation,
    /// Fields of the response that repeat the request.
    pub(crate) said: Map<String, Value>,
    /// The request's own items, each with an id.
    pub(crate) input: Vec<Value>,
    /// The items before these.
    pub(crate) before: Option<Stored>,
    /// Whether to store the response.
    pub(crate) store: bool,
    /// Whether it is made while nobody waits.
    pub(crate) background: bool,
}

impl ResponsesRequest {
    /// Reads a body; `kept` has the responses that it may continue.
    pub(crate) fn read(
        body: &Value,
        limits: &RequestLimits,
        kept: &Store,
    ) -> Result<ResponsesRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let mut params = GenerationParams::of_defaults(limits);
        params.model = fields.string("model")?.map(str::to_owned);
        params.stream = fields.boolean("stream")?.unwrap_or(false);
        params.max_tokens = read_length(&mut fields, "max_output_tokens", 1, limits)?;
        params.user = fields.string("user")?.map(str::to_owned);
        let sampling = &mut params.sampling;
        let targets =
            [("temperature", TEMPERATURE, &mut sampling.temperature), ("top_p", TOP_P, &mut sampling.top_p)];
        read_numbers(&mut fields, targets)?;
        sampling.validate().map_err(|(field, what)| ApiError::at(field, what))?;
        let instructions = fields.string("instructions")?;
        fields.about("A response that is kept, to go on from.");
        let previous = fields.string("previous_response_id")?;
        let before = match previous {
            None => None,
            Some(id) => Some(read_previous(id, kept)?),
        };
        let input = read_input(&mut fields)?;
        let items: Vec<Value> = before.iter().flat_map(|it| &it.items).chain(&input).cloned().collect();
        let mut messages: Vec<Value> =
            instructions.iter().map(|text| json!({"role": "system", "content": text})).collect();
        let earlier = items.len() - input.len();
        let (said_before, mut images) =
            messages_of(&items, limits.images).map_err(|error| with_own_path(error, earlier))?;
        for image in &mut images {
            image.at = own_path(&image.at, earlier).unwrap_or_else(|| std::mem::take(&mut image.at));
        }
        messages.extend(said_before);
        let messages = instructions_first(messages);
        let tools = read_tools(&mut fields)?;
        let (reasoning, effort) = read_reasoning(&mut fields)?;
        let metadata = fields.of(any).value("metadata").cloned().unwrap_or_else(|| json!({}));
        fields.about("Whether the response is kept: true unless said otherwise.");
        let store = fields.boolean("store")?.unwrap_or(true);
        let background = read_background(&mut fields, params.stream, store, kept)?;
        let text = read_text(&mut fields, &mut params)?;
        let top_logprobs = read_logprobs(&mut fields, &mut params)?;
        params.compacts = read_truncation(&mut fields)?;
        refuse_unsupported(&mut fields)?;
        routers::read_responses(&mut fields)?;
        params.ignored = fields.finish()?;
        let given = tools.given.iter().zip(&tools.strict).map(|(tool, strict)| {
            let function = &tool["function"];
            json!({
                "type": "function", "name": function["name"], "description": function["description"],
                "parameters": function["parameters"], "strict": strict,
            })
        });
        let said = json!({
            "instructions": instructions, "max_output_tokens": params.max_tokens, "metadata": metadata,
            "parallel_tool_calls": !tools.one, "previous_response_id": previous,
            "reasoning": {"effort": effort, "summary": null}, "store": store,
            "temperature": params.sampling.temperature, "text": {"format": text},
            "tool_choice": body["tool_choice"].as_null().map_or_else(|| body["tool_choice"].clone(), |()| "auto".into()), "tools": given.collect::<Vec<_>>(),
            "top_p": params.sampling.top_p, "user": params.user, "background": background,
            "service_tier": "default", "top_logprobs": top_logprobs,
        });
        let said = if let Value::Object(said) = said { said } else { Map::new() };
        let conversation =
            Conversation { at: "input", messages, images, tools, reasoning, ..Conversation::default() };
        Ok(ResponsesRequest { params, conversation, said, input, before, store, background })
    }
}

/// The response that a request goes on from.
fn read_previous(id: &str, kept: &Store) -> Result<Stored, ApiError> {
    const NAME: &str = "previous_response_id";
    let Some(stored) = kept.get(id) else {
        let message = format!("`{NAME}`: no response {id:?} is kept here");
        return Err(ApiError { code: "previous_response_not_found", ..ApiError::field(NAME, message) });
    };
    if stored.response["status"] == "in_progress" {
        return Err(wrong!(NAME, "names a response that is still in progress; ask for it until it is not"));
    }
    Ok(stored)
}

/// Whether the response is made while nobody waits.
fn read_background(fields: &mut Fields, stream: bool, store: bool, kept: &Store) -> Result<bool, ApiError> {
    const NAME: &str = "background";
    fields.about("The response is told at once, in progress, and is had and cancelled by its id.");
    match fields.boolean(NAME)?.unwrap_or(false) {
        true if stream => Err(wrong!(NAME, "contradicts `stream`: such a response is asked for by its id")),
        true if !store => {
            Err(wrong!(NAME, "contradicts `store: false`: such a response is asked for by its id"))
        }
        true if !kept.keeps() => {
            let message = "a response in the background, on a server that keeps none (--response-store 0)";
            Err(ApiError::unsupported(NAME, message))
        }
        background => Ok(background),
    }
}

/// The path in this request's body of what has a path among all items, `before` of which are earlier ones';
/// these have none.
fn own_path(path: &str, before: usize) -> Option<String> {
    let (at, rest) = path.strip_prefix("input[")?.split_once(']')?;
    let at = at.parse::<usize>().ok()?.checked_sub(before)?;
    Some(format!("input[{at}]{rest}"))
}

/// An error with its own path; those in earlier items stay as they are.
fn with_own_path(error: ApiError, before: usize) -> ApiError {
    let Some(found) = error.param.clone() else { return error };
    let Some(own) = own_path(&found, before) else { return error };
    ApiError { message: error.message.replace(&found, &own), param: Some(own), ..error }
}

/// The input as items with ids.
fn read_input(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let items = match fields.of(|| any_of([text(), some(of("ResponseItem"))])).required("input")? {
        Value::String(text) => {
            vec![
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}),
            ]
        }
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field("input", "`input` must not be empty"));
        }
        Value::Array(items) => items.clone(),
        other => return Err(wrong_type("input", "a string or an array of items", other)),
    };
    let with_id = |mut item: Value| {
        if item.is_object() && item["id"].is_null() {
            item["id"] = format!("item_{:016x}", random_seed()).into();
        }
        if item.is_object() && item["type"].is_null() {
            item["type"] = "message".into();
        }
        item
    };
    Ok(items.into_iter().map(with_id).collect())
}

fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    fields.of(|| array(of("ResponseTool")));
    let mut tools = read_given(fields, read_tool, "name", "parameters")?;
    read_choice(fields, &mut tools, FunctionPlace::Beside)?;
    fields.refuse_unless("max_tool_calls", &Neutral::Nothing, "a limit on tool calls")?;
    tools.one = !fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(tools)
}

/// JSON schema of an entry of `tools`.
pub(crate) fn tool_schema() -> Value {
    described("", [json!({"type": "function", "name": "f"})], |tool| read_tool("", tool))
}

fn read_tool(path: &str, tool: &Value) -> Result<(Value, bool), ApiError> {
    let mut fields = Fields::new(path, tool)?;
    match fields.required_tag("type")? {
        "function" => {}
        other => {
            let what = format!("tools of type {other:?}");
            return Err(ApiError::unsupported(fields.path("type"), &what));
        }
    }
    let name_at = fields.path("name");
    let name = fields.of(tool_name).required_string("name")?;
    let description = fields.string("description")?;
    let schema = fields.about("A JSON schema.").of(any_object).value("parameters");
    let schema_at = fields.path("parameters");
    let strict = fields.boolean("strict")?.unwrap_or(false);
    fields.finish()?;
    Ok((tool_of(name, &name_at, description, schema, &schema_at)?, strict))
}

/// The format of the text: the answer's constraint, and how the response reports it.
fn read_text(fields: &mut Fields, params: &mut GenerationParams) -> Result<Value, ApiError> {
    let plain = || json!({"type": "text"});
    let Some(text) = fields.value("text") else { return Ok(plain()) };
    let mut text = Fields::new("text", text)?;
    let format = text.of(|| typed(None)).value("format");
    params.format = format.map_or(Ok(None), |format| read_typed("text.format", format, None))?;
    text.refuse_unless("verbosity", &Neutral::Only("medium".into()), "a choice of verbosity")?;
    text.finish()?;
    Ok(format.cloned().unwrap_or_else(plain))
}

/// The requested reasoning, and the effort by name.
fn read_reasoning(fields: &mut Fields) -> Result<(Reasoning, Option<String>), ApiError> {
    let Some(value) = fields.value("reasoning") else { return Ok((Reasoning::Unsaid, None)) };
    let mut reasoning = Fields::new("reasoning", value)?;
    let read = read_effort(&mut reasoning, "effort", "reasoning.effort")?;
    // There are no summaries: reasoning is returned in full.
    reasoning.refuse_unless("summary", &Neutral::Only("auto".into()), "a summary of the reasoning")?;
    reasoning.refuse_unless("generate_summary", &Neutral::Nothing, "a summary of the reasoning")?;
    reasoning.finish()?;
    Ok((read, value["effort"].as_str().map(str::to_owned)))
}

/// How many alternatives are told of each token of the text. Log-probabilities are asked for by a number
/// above 0, or as a part of the response.
fn read_logprobs(fields: &mut Fields, params: &mut GenerationParams) -> Result<u8, ApiError> {
    let most = i64::from(MAX_TOP_LOGPROBS);
    fields.about("Alternatives that are told of each token of the text.");
    let top = fields.integer("top_logprobs", 0..=most)?.unwrap_or(0) as u8;
    // Reasoning is in the response as it is, and needs no second form.
    let parts = ["reasoning.encrypted_content", LOGPROBS];
    let include = fields.of(|| array(words(&parts))).value("include");
    let included = match include {
        None => false,
        Some(Value::Array(include)) if include.iter().all(|it| parts.iter().any(|part| it == part)) => {
            include.iter().any(|it| it == LOGPROBS)
        }
        Some(_) => return Err(ApiError::unsupported("include", "further parts of the response")),
    };
    params.sampling.top_logprobs = (included || top > 0).then_some(top);
    Ok(top)
}

/// Whether input that is too long is to be shortened.
fn read_truncation(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    fields.about(
        "Whether input that is too long is shortened: as the server was started unless said otherwise.",
    );
    match fields.of(|| words(&TRUNCATIONS)).string("truncation")? {
        None => Ok(None),
        Some("auto") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some(other) => Err(wrong_word("truncation", &TRUNCATIONS, Some(other))),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, neutral, what) in [
        ("conversation", Neutral::Empty, "stored conversations"),
        ("prompt", Neutral::Empty, "stored prompts"),
        ("context_management", Neutral::Empty, "context editing"),
    ] {
        fields.refuse_unless(name, &neutral, what)?;
    }
    fields.harmless(&["service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]);
    fields.harmless(&["stream_options", "client_metadata"]);
    Ok(())
}

//! A request to `/v1/messages`, or to `/v1/messages/count_tokens`.

use super::editing::read_edits;
use super::messages::{read_messages, read_system};
use super::thinking::{BUDGET, Display, EFFORT, Thinking, read_thinking};
use super::tools::read_tools;
use crate::error::{ApiError, wrong};
use crate::openapi::schema::words;
use crate::request::conversation::{Conversation, Reasoning};
use crate::request::fields::{Fields, Neutral, missing, wrong_word};
use crate::request::format::{Format, read_typed, typed};
use crate::request::generation::{
    GenerationParams, TEMPERATURE, TOP_P, read_length, read_numbers, read_stops,
};
use crate::request::limits::RequestLimits;
use serde_json::{Map, Value};

/// The path of the format.
const FORMAT: &str = "output_config.format";

/// How much a model may reason.
pub(crate) const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// A request, checked.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    /// Parameters of the answer.
    pub(crate) params: GenerationParams,
    /// The conversation to answer.
    pub(crate) conversation: Conversation,
    /// How the answer's reasoning is returned.
    pub(crate) display: Display,
}

/// Parameters of the answer that are read with the prompt.
struct Config {
    /// Tokens that it may reason for.
    budget: Option<usize>,
    /// The answer's format.
    format: Option<Format>,
    /// How its reasoning is returned.
    display: Display,
}

impl MessagesRequest {
    /// Reads a body.
    pub(crate) fn read(body: &Value, limits: &RequestLimits) -> Result<MessagesRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let (conversation, config) = read_conversation(&mut fields, limits.images)?;
        let Config { budget, format, display } = config;
        let mut params = GenerationParams::of_defaults(limits);
        params.model = fields.string("model")?.map(str::to_owned);
        params.stream = fields.boolean("stream")?.unwrap_or(false);
        let max_tokens =
            read_length(&mut fields, "max_tokens", 1, limits)?.ok_or_else(|| missing("max_tokens"))?;
        fields.holds("max_tokens");
        params.max_tokens = Some(max_tokens);
        if let Some(budget) = budget {
            if budget >= max_tokens {
                return Err(wrong!(BUDGET, "is {budget}, and must be less than `max_tokens`, {max_tokens}"));
            }
            params.reasoning_budget = Some((BUDGET, budget));
        }
        params.format = format;
        params.stops = read_stops(&mut fields, "stop_sequences")?;
        let sampling = &mut params.sampling;
        let targets =
            [("temperature", TEMPERATURE, &mut sampling.temperature), ("top_p", TOP_P, &mut sampling.top_p)];
        read_numbers(&mut fields, targets)?;
        if let Some(top_k) = fields.integer("top_k", 0..=i64::from(u32::MAX))? {
            sampling.top_k = u32::try_from(top_k).unwrap_or(0);
        }
        sampling.validate().map_err(|(field, what)| ApiError::at(field, what))?;
        if let Some(metadata) = fields.value("metadata") {
            let mut metadata = Fields::new("metadata", metadata)?;
            params.user = metadata.string("user_id")?.map(str::to_owned);
            metadata.finish()?;
        }
        fields.harmless(&["service_tier", "inference_geo"]);
        refuse_unsupported(&mut fields)?;
        params.ignored = fields.finish()?;
        Ok(MessagesRequest { params, conversation, display })
    }

    /// Reads a body whose tokens are to be counted, for a model that takes images or does not.
    pub(crate) fn read_to_count(
        body: &Value,
        takes_images: bool,
    ) -> Result<(Option<String>, Conversation), ApiError> {
        let mut fields = Fields::new("", body)?;
        let (conversation, _) = read_conversation(&mut fields, takes_images)?;
        let model = fields.string("model")?.map(str::to_owned);
        refuse_unsupported(&mut fields)?;
        fields.finish()?;
        Ok((model, conversation))
    }
}

/// Refuses unsupported fields that would change the answer.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, what) in [
        ("container", "code containers"),
        ("mcp_servers", "MCP servers"),
        ("output_format", "output formats in this field; use `output_config.format`"),
        ("speed", "a choice of speed"),
    ] {
        fields.refuse_unless(name, &Neutral::Empty, what)?;
    }
    Ok(())
}

/// Reads the prompt, and the parameters of the answer that come with it.
fn read_conversation(fields: &mut Fields, takes_images: bool) -> Result<(Conversation, Config), ApiError> {
    // Prefixes are always cached.
    fields.harmless(&["cache_control"]);
    let mut messages: Vec<Value> = read_system(fields)?.into_iter().collect();
    let (said, images) = read_messages(fields, takes_images)?;
    messages.extend(said);
    let tools = read_tools(fields)?;
    let edits = read_edits(fields)?;
    let (effort, format) = read_output_config(fields)?;
    let Thinking { reasoning, budget, display } = read_thinking(fields, effort)?;
    let continues = messages.last().is_some_and(|message| message["role"] == "assistant");
    if let (true, Reasoning::On { field, .. }) = (continues, &reasoning) {
        return Err(wrong!(
            *field,
            "contradicts a last message of the assistant, which the answer goes on with"
        ));
    }
    let variables = Map::new();
    Ok((
        Conversation { at: "messages", messages, images, edits, continues, tools, reasoning, variables },
        Config { budget, format, display },
    ))
}

/// The effort, and the format of the answer.
fn read_output_config(fields: &mut Fields) -> Result<(Option<String>, Option<Format>), ApiError> {
    let Some(config) = fields.value("output_config") else { return Ok((None, None)) };
    let mut config = Fields::new("output_config", config)?;
    config.about("With `thinking` only.").of(|| words(&EFFORTS));
    let effort = config.string("effort")?;
    config.of(|| typed(None));
    let format = config.value("format").map(|format| read_typed(FORMAT, format, None)).transpose()?;
    config.finish()?;
    match effort {
        Some(effort) if !EFFORTS.contains(&effort) => Err(wrong_word(EFFORT, &EFFORTS, Some(effort))),
        effort => Ok((effort.map(str::to_owned), format.flatten())),
    }
}

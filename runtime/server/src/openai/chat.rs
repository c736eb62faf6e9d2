//! A request to `/v1/chat/completions`.

use super::fields::{Fields, wrong_type};
use super::generation::{GenerationParams, Limits, is_empty};
use crate::http::error::ApiError;
use monomorph_sampling::MAX_TOP_LOGPROBS;
use serde_json::{Map, Value, json};

/// A chat request, checked.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// What it shares with text completions.
    pub(crate) params: GenerationParams,
    /// The messages as a chat template takes them: `{"role", "content"}`, content a string.
    pub(crate) messages: Vec<Value>,
    /// Further variables of the template.
    pub(crate) template_variables: Map<String, Value>,
}

impl ChatRequest {
    /// Reads a body.
    pub(crate) fn read(body: &Value, limits: &Limits) -> Result<ChatRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let messages = read_messages(&mut fields)?;
        let mut params = GenerationParams::read(&mut fields, limits)?;
        let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
        let top = fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?;
        if top.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        params.sampling.top_logprobs = logprobs.then_some(top.unwrap_or(0) as u8);
        let template_variables = read_template_variables(&mut fields)?;
        refuse_unsupported(&mut fields)?;
        fields.finish()?;
        Ok(ChatRequest { params, messages, template_variables })
    }
}

/// Refuses what would change the answer and is not done yet.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let off = |value: &Value| value == "none" || value == "auto";
    fields.refuse_unless("tools", is_empty, "tools are")?;
    fields.refuse_unless("functions", is_empty, "functions are")?;
    fields.refuse_unless("tool_choice", off, "tools are")?;
    fields.refuse_unless("function_call", off, "functions are")?;
    let text = |value: &Value| value == &json!({"type": "text"});
    fields.refuse_unless("response_format", text, "formats other than text are")?;
    fields.refuse_unless(
        "modalities",
        |value| value == &json!(["text"]),
        "modalities other than text are",
    )?;
    for (name, what) in [
        ("audio", "audio is"),
        ("prediction", "a predicted answer is"),
        ("reasoning_effort", "a reasoning effort is"),
        ("verbosity", "a verbosity is"),
        ("web_search_options", "web search is"),
    ] {
        fields.refuse_unless(name, |_| false, what)?;
    }
    fields.harmless(&["parallel_tool_calls"]);
    Ok(())
}

/// Further variables of the chat template.
pub(super) fn read_template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.value("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(other) => Err(wrong_type("chat_template_kwargs", "an object", other)),
    }
}

/// The messages as a chat template takes them.
pub(super) fn read_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    match fields.value("messages") {
        None => Err(ApiError::field("messages", "`messages` is required")),
        Some(Value::Array(messages)) if messages.is_empty() => {
            Err(ApiError::field("messages", "`messages` must not be empty"))
        }
        Some(Value::Array(messages)) => {
            messages.iter().enumerate().map(|(at, message)| read_message(at, message)).collect()
        }
        Some(other) => Err(wrong_type("messages", "an array", other)),
    }
}

fn read_message(at: usize, message: &Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(&format!("messages[{at}]"), message)?;
    let path = fields.path("role");
    let role = match fields.string("role")? {
        None => return Err(ApiError::field(&path, format!("`{path}` is required"))),
        // The newer name of the same thing, which templates do not know.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some("tool" | "function") => return Err(ApiError::unsupported(path, "answers of tools are")),
        Some(other) => {
            let message = format!("`{path}` must be system, developer, user or assistant, and is {other:?}");
            return Err(ApiError::field(&path, message));
        }
    };
    let path = fields.path("content");
    let content = match fields.value("content") {
        None => return Err(ApiError::field(&path, format!("`{path}` is required"))),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (at, part) in parts.iter().enumerate() {
                text.push_str(read_part(&format!("{path}[{at}]"), part)?);
            }
            text
        }
        Some(other) => return Err(wrong_type(&path, "a string or an array of parts", other)),
    };
    fields.refuse_unless("tool_calls", is_empty, "calls of tools are")?;
    fields.refuse_unless("function_call", |_| false, "calls of functions are")?;
    fields.refuse_unless("audio", |_| false, "audio is")?;
    fields.refuse_unless("refusal", |_| false, "a refusal in the history is")?;
    // What clients send back of an earlier answer.
    fields.harmless(&["annotations"]);
    let mut read = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())]);
    if let Some(name) = fields.string("name")? {
        read.insert("name".to_owned(), name.into());
    }
    fields.finish()?;
    Ok(Value::Object(read))
}

fn read_part<'a>(path: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    let mut fields = Fields::new(path, part)?;
    match fields.string("type")? {
        Some("text") => {}
        Some(other) => return Err(ApiError::unsupported(path, &format!("parts of type {other:?} are"))),
        None => return Err(ApiError::field(fields.path("type"), format!("`{path}.type` is required"))),
    }
    let text = fields.string("text")?;
    fields.finish()?;
    text.ok_or_else(|| ApiError::field(format!("{path}.text"), format!("`{path}.text` is required")))
}

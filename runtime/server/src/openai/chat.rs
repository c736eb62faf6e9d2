//! A request to `/v1/chat/completions`.

use super::messages::read_messages;
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_object, words};
use crate::request::conversation::{Conversation, Reasoning};
use crate::request::fields::{Fields, Neutral, wrong_word};
use crate::request::generation::GenerationParams;
use crate::request::limits::RequestLimits;
use crate::request::routers;
use crate::request::tools::read_tools;
use monomorph_sampling::MAX_TOP_LOGPROBS;
use serde_json::{Map, Value, json};

/// A chat request, checked.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// What it shares with text completions.
    pub(crate) params: GenerationParams,
    /// The conversation to answer.
    pub(crate) conversation: Conversation,
}

/// Tokens that an answer may reason for, as vLLM has it.
const BUDGET: &str = "thinking_token_budget";
/// How much a model may reason, as OpenAI has it.
pub(crate) const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

impl ChatRequest {
    /// Reads a body.
    pub(crate) fn read(body: &Value, limits: &RequestLimits) -> Result<ChatRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let conversation = read_conversation(&mut fields, limits.images)?;
        let mut params = GenerationParams::read(&mut fields, limits)?;
        let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
        fields.about("With `logprobs` only.");
        let top = fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?;
        if top.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        params.sampling.top_logprobs = logprobs.then_some(top.unwrap_or(0) as u8);
        fields.about("Tokens that an answer may reason for.");
        let budget = fields.integer(BUDGET, 0..=i64::from(u32::MAX))?;
        params.reasoning_budget = budget.map(|budget| (BUDGET, budget as usize));
        if budget.is_some() && params.ignore_eos {
            return Err(wrong!(BUDGET, "contradicts `ignore_eos`; give one of them"));
        }
        fields.about("As vLLM has it: the opposite of `continue_final_message`.");
        let opens = fields.boolean("add_generation_prompt")?;
        if opens.is_some_and(|opens| opens == conversation.continues) {
            let what = "must be the opposite of `continue_final_message`";
            return Err(wrong!("add_generation_prompt", "{what}"));
        }
        refuse_unsupported(&mut fields)?;
        routers::read_chat(&mut fields)?;
        params.ignored = fields.finish()?;
        Ok(ChatRequest { params, conversation })
    }
}

/// Everything that makes the prompt, of a model that takes images or does not.
pub(super) fn read_conversation(fields: &mut Fields, takes_images: bool) -> Result<Conversation, ApiError> {
    let (messages, images) = read_messages(fields, takes_images)?;
    Ok(Conversation {
        edits: None,
        at: "messages",
        continues: read_continues(fields, &messages)?,
        messages,
        images,
        tools: read_tools(fields)?,
        reasoning: read_effort(fields, "reasoning_effort", "reasoning_effort")?,
        variables: read_template_variables(fields)?,
    })
}

/// Whether the answer goes on with the last message, as vLLM and transformers have it.
fn read_continues(fields: &mut Fields, messages: &[Value]) -> Result<bool, ApiError> {
    const FIELD: &str = "continue_final_message";
    fields.about("Whether the answer goes on with the last message, the assistant's.");
    if fields.boolean(FIELD)? != Some(true) {
        return Ok(false);
    }
    let last = messages.last();
    let has_text = |message: &Value| message["content"].as_str().is_some_and(|text| !text.is_empty());
    if !last.is_some_and(|it| it["role"] == "assistant" && it.get("tool_calls").is_none() && has_text(it)) {
        return Err(wrong!(FIELD, "needs a last message of the assistant with text and no calls"));
    }
    Ok(true)
}

/// The effort of the reasoning, in the field `name`, whose path is `field`.
pub(super) fn read_effort(
    fields: &mut Fields,
    name: &'static str,
    field: &'static str,
) -> Result<Reasoning, ApiError> {
    Ok(match fields.of(|| words(&EFFORTS)).string(name)? {
        None => Reasoning::Unsaid,
        Some("none") => Reasoning::Off { field },
        Some(effort) if EFFORTS.contains(&effort) => Reasoning::On { field, effort: Some(effort.to_owned()) },
        Some(other) => return Err(wrong_word(field, &EFFORTS, Some(other))),
    })
}

/// Refuses unsupported fields that would change the answer.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, neutral, what) in [
        ("functions", Neutral::Empty, "functions; use `tools`"),
        ("function_call", Neutral::Word(&["none", "auto"]), "functions; use `tools`"),
        ("modalities", Neutral::Only(json!(["text"])), "modalities other than text"),
        ("audio", Neutral::Nothing, "audio"),
        ("prediction", Neutral::Nothing, "predicted outputs"),
        ("verbosity", Neutral::Nothing, "a choice of verbosity"),
        ("web_search_options", Neutral::Nothing, "web search"),
    ] {
        fields.refuse_unless(name, &neutral, what)?;
    }
    Ok(())
}

/// Further variables of the chat template.
fn read_template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    fields.about("Variables of the chat template.").of(any_object);
    Ok(fields.object("chat_template_kwargs")?.cloned().unwrap_or_default())
}

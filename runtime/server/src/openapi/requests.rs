//! Request schemas, recorded from the readers.

use super::Facts;
use super::schema::{Properties, or_null};
use crate::anthropic::editing;
use crate::anthropic::messages as anthropic_messages;
use crate::anthropic::request::MessagesRequest;
use crate::anthropic::tools as tools_of_anthropic;
use crate::error::ApiError;
use crate::openai::chat::ChatRequest;
use crate::openai::completions::CompletionRequest;
use crate::openai::messages;
use crate::openai::responses::items;
use crate::openai::responses::request::{self as responses, ResponsesRequest};
use crate::openai::responses::store::Store;
use crate::openai::tokens::{DetokenizeRequest, TokenizeRequest};
use crate::request::described::described;
use crate::request::format;
use crate::request::generation::stream_options;
use crate::request::limits::RequestLimits;
use crate::request::tools;
use monomorph_sampling::Sampling;
use serde_json::{Value, json};

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    let Facts { context, vocabulary, images, .. } = *facts;
    let limits = RequestLimits { context, vocabulary, on_gpu: false, images, sampling: Sampling::GREEDY };
    let said = json!([{"role": "user", "content": "a"}]);
    let chat = json!({"messages": said});
    let texts = [json!({"prompt": "a"}), chat.clone()];
    let count = |body: &Value| MessagesRequest::read_to_count(body, images).map(drop);
    let response = json!({"input": "a", "reasoning": {}, "text": {}});
    let kept = Store::new(0);
    let requests = vec![
        ("ChatRequest", body(facts, [chat], |body| ChatRequest::read(body, &limits).map(drop))),
        (
            "CompletionRequest",
            body(facts, [json!({"prompt": "a"})], |body| CompletionRequest::read(body, &limits).map(drop)),
        ),
        ("TokenizeRequest", body(facts, texts, |body| TokenizeRequest::read(body, images).map(drop))),
        (
            "DetokenizeRequest",
            body(facts, [json!({"tokens": []})], |body| {
                DetokenizeRequest::read(body, facts.vocabulary).map(drop)
            }),
        ),
        ("StreamOptions", stream_options()),
        ("ResponseFormat", format::typed(Some("json_schema"))),
        ("StructuredOutputs", format::outputs()),
        ("ChatTool", tools::tool_schema()),
        (
            "ResponseRequest",
            body(facts, [response], |body| ResponsesRequest::read(body, &limits, &kept).map(drop)),
        ),
        ("ResponseTool", responses::tool_schema()),
        (
            "MessagesRequest",
            body(facts, anthropic_bodies(&said), |body| MessagesRequest::read(body, &limits).map(drop)),
        ),
        ("CountTokensRequest", body(facts, anthropic_bodies(&said).map(without_answer), count)),
        ("AnthropicTool", tools_of_anthropic::tool_schema()),
        ("AnthropicEdit", editing::edit_schema()),
    ];
    [requests, messages::schemas(images), items::schemas(images), anthropic_messages::schemas(images)]
        .concat()
}

/// A body for each kind of object that is in one.
fn anthropic_bodies(said: &Value) -> [Value; 4] {
    let choices = [
        (json!({"type": "auto"}), json!({"type": "disabled"})),
        (json!({"type": "any"}), json!({"type": "adaptive"})),
        (json!({"type": "none"}), json!({"type": "enabled", "budget_tokens": 1})),
        (json!({"type": "tool", "name": "f"}), json!({"type": "adaptive"})),
    ];
    choices.map(|(choice, thinking)| {
        json!({
            "messages": said, "max_tokens": 2, "metadata": {}, "output_config": {}, "thinking": thinking,
            "tools": [{"name": "f"}], "tool_choice": choice, "context_management": {},
        })
    })
}

fn without_answer(mut body: Value) -> Value {
    if let Value::Object(body) = &mut body {
        body.retain(|name, _| !["max_tokens", "metadata"].contains(&name.as_str()));
    }
    body
}

/// What a request's body is; there is one model that it may name.
fn body<const N: usize>(
    facts: &Facts,
    samples: [Value; N],
    read: impl Fn(&Value) -> Result<(), ApiError>,
) -> Value {
    let named = |schema: &mut Value| {
        if let Some(model) = schema["properties"].get_mut("model") {
            *model = or_null(json!({"type": "string", "enum": names(facts)}));
        }
    };
    let mut schema = described("", samples, read);
    match schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        Some(kinds) => kinds.iter_mut().for_each(named),
        None => named(&mut schema),
    }
    schema
}

/// The names of the one model, each once.
pub(super) fn names<'a>(facts: &Facts<'a>) -> Vec<&'a str> {
    let mut names = facts.names.to_vec();
    names.sort_unstable();
    names.dedup();
    names
}

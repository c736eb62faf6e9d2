//! `/v1/messages` and `/v1/messages/count_tokens`: what is answered, and examples.

use super::Facts;
use super::answers::compacted;
use super::schema::{
    Properties, about, also, any_object, any_of, array, count, object, of, only, or_null, properties, text,
    whole, words,
};
use crate::anthropic::editing::applied_schema;
use serde_json::{Value, json};

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    properties! {
        AnthropicAnswer: answer(facts), AnthropicEvent: event(), AnthropicError: error(),
        TokenCount: also(
            object! { input_tokens: count() },
            properties! { context_management: object! { original_input_tokens: count() } },
        ),
    }
}

fn usage() -> Value {
    let usage = object! {
        input_tokens: about("Those that were computed.", count()), cache_creation_input_tokens: only(0),
        cache_read_input_tokens: count(), output_tokens: count(),
        output_tokens_details: object! { thinking_tokens: count() },
    };
    also(usage, properties! { compacted_input_tokens: compacted() })
}

fn stop_reason() -> Value {
    words(&["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"])
}

fn blocks() -> [Value; 3] {
    [
        object! { type: only("text"), text: text() },
        object! { type: only("thinking"), thinking: text(), signature: text() },
        object! { type: only("tool_use"), id: text(), name: text(), input: any_object() },
    ]
}

/// An answer; in a stream, as far as it is known at the beginning.
fn answer(facts: &Facts) -> Value {
    let message = object! {
        id: text(), type: only("message"), role: only("assistant"), model: only(facts.model),
        content: array(any_of(blocks())), stop_reason: or_null(stop_reason()), stop_sequence: or_null(text()),
        usage: usage(),
    };
    also(message, properties! { context_management: applied_schema() })
}

/// An event of a stream, by its type.
fn event() -> Value {
    let delta = |kind: &str, name: &'static str| whole(vec![("type", only(kind)), (name, text())]);
    let deltas = any_of([
        delta("text_delta", "text"),
        delta("thinking_delta", "thinking"),
        delta("signature_delta", "signature"),
        delta("input_json_delta", "partial_json"),
    ]);
    let end = object! { stop_reason: or_null(stop_reason()), stop_sequence: or_null(text()) };
    any_of([
        object! { type: only("message_start"), message: of("AnthropicAnswer") },
        object! { type: words(&["ping", "message_stop"]) },
        object! { type: only("content_block_start"), index: count(), content_block: any_of(blocks()) },
        object! { type: only("content_block_delta"), index: count(), delta: deltas },
        object! { type: only("content_block_stop"), index: count() },
        also(
            object! { type: only("message_delta"), delta: end, usage: usage() },
            properties! { context_management: applied_schema() },
        ),
        of("AnthropicError"),
    ])
}

fn error() -> Value {
    let kinds = [
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "overloaded_error",
        "timeout_error",
        "api_error",
        "invalid_request_error",
    ];
    object! { type: only("error"), error: object! { type: words(&kinds), message: text() } }
}

/// Requests that show what there is.
pub(super) fn examples(counts: bool) -> Value {
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    let tool = json!({
        "name": "get_weather", "description": "The weather somewhere",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    });
    let conversation = json!([
        question,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I look.", "signature": ""},
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}]},
            {"type": "text", "text": "And tomorrow?"},
        ]},
    ]);
    let mut bodies = properties! {
        text: json!({"messages": [question], "system": [{"type": "text", "text": "Be brief."}]}),
        tools: json!({"messages": conversation, "tools": [tool], "tool_choice": {"type": "auto"}}),
        thinking: json!({"messages": [question], "thinking": {"type": "enabled", "budget_tokens": 20}}),
        edited: json!({"messages": conversation, "context_management": {"edits": [
            {"type": "clear_thinking_20251015", "keep": "all"},
            {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0},
             "keep": {"type": "tool_uses", "value": 0}},
        ]}}),
    };
    if !counts {
        bodies.push(("stream", json!({"messages": [question], "stream": true})));
        bodies.iter_mut().for_each(|(_, body)| body["max_tokens"] = 100.into());
    }
    let named = bodies.into_iter().map(|(name, body)| (name.to_owned(), json!({"value": body})));
    Value::Object(named.collect())
}

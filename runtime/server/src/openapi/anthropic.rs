//! `/v1/messages` and `/v1/messages/count_tokens`: requests, and what is answered.

use super::Facts;
use super::generation::{U32, flat_format, length, model, stops, temperature_and_top_p, tool_name};
use super::schema::{
    Properties, about, any, any_object, any_of, array, boolean, count, empty, integer, of, only, or_null,
    request, some, text, whole, words,
};
use crate::anthropic::request::EFFORTS;
use serde_json::{Value, json};

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    vec![
        ("MessagesRequest", create(facts)),
        ("CountTokensRequest", count_tokens(facts)),
        ("AnthropicMessage", message()),
        ("AnthropicText", text_block()),
        ("AnthropicTool", tool()),
        ("AnthropicAnswer", answer(facts)),
        ("AnthropicEvent", event()),
        ("AnthropicError", error()),
        ("TokenCount", whole(vec![("input_tokens", count())])),
    ]
}

/// What makes the prompt.
fn conversation(facts: &Facts) -> Properties {
    let one = || ("disable_parallel_tool_use", boolean());
    let choice = any_of([
        request(&["type"], vec![("type", words(&["auto", "any", "none"])), one()]),
        request(&["type", "name"], vec![("type", only("tool")), ("name", tool_name()), one()]),
    ]);
    let shown = || ("display", only("summarized"));
    let thinking = any_of([
        request(&["type"], vec![("type", words(&["adaptive", "disabled"])), shown()]),
        request(
            &["type", "budget_tokens"],
            vec![("type", only("enabled")), ("budget_tokens", integer(1..=U32)), shown()],
        ),
    ]);
    let config = request(
        &[],
        vec![("effort", about("With `thinking` only.", words(&EFFORTS))), ("format", flat_format())],
    );
    vec![
        ("model", model(facts)),
        ("messages", about("The last one is the user's.", some(of("AnthropicMessage")))),
        ("system", any_of([text(), array(of("AnthropicText"))])),
        ("tools", array(of("AnthropicTool"))),
        ("tool_choice", choice),
        ("thinking", thinking),
        ("output_config", config),
        ("cache_control", any()),
        ("container", empty()),
        ("context_management", empty()),
        ("mcp_servers", empty()),
        ("output_format", empty()),
        ("speed", empty()),
    ]
}

fn create(facts: &Facts) -> Value {
    let own = vec![
        ("max_tokens", length(facts)),
        ("stream", boolean()),
        ("stop_sequences", stops()),
        ("top_k", integer(0..=U32)),
        ("metadata", request(&[], vec![("user_id", text())])),
        ("service_tier", any()),
        ("inference_geo", any()),
    ];
    request(&["messages", "max_tokens"], [conversation(facts), own, temperature_and_top_p()].concat())
}

fn count_tokens(facts: &Facts) -> Value {
    request(&["messages"], conversation(facts))
}

fn text_block() -> Value {
    request(
        &["type", "text"],
        vec![("type", only("text")), ("text", text()), ("cache_control", any()), ("citations", any())],
    )
}

/// A message, by who speaks.
fn message() -> Value {
    let result = request(
        &["type", "tool_use_id"],
        vec![
            ("type", only("tool_result")),
            ("tool_use_id", text()),
            ("content", any_of([text(), array(of("AnthropicText"))])),
            ("is_error", boolean()),
            ("cache_control", any()),
        ],
    );
    let called = request(
        &["type", "id", "name"],
        vec![
            ("type", only("tool_use")),
            ("id", text()),
            ("name", text()),
            ("input", any_object()),
            ("cache_control", any()),
            ("caller", any()),
        ],
    );
    let thought = request(
        &["type", "thinking"],
        vec![
            ("type", only("thinking")),
            ("thinking", text()),
            ("signature", any()),
            ("cache_control", any()),
        ],
    );
    let content = |block: Value| ("content", any_of([text(), array(block)]));
    any_of([
        request(
            &["role", "content"],
            vec![("role", words(&["user", "system"])), content(any_of([of("AnthropicText"), result]))],
        ),
        request(
            &["role", "content"],
            vec![("role", only("assistant")), content(any_of([of("AnthropicText"), called, thought]))],
        ),
    ])
}

fn tool() -> Value {
    request(
        &["name"],
        vec![
            ("type", only("custom")),
            ("name", tool_name()),
            ("description", text()),
            ("input_schema", about("A JSON schema.", any_object())),
            ("strict", boolean()),
            ("cache_control", any()),
            ("eager_input_streaming", any()),
        ],
    )
}

fn usage() -> Value {
    whole(vec![
        ("input_tokens", about("Those that were computed.", count())),
        ("cache_creation_input_tokens", only(0)),
        ("cache_read_input_tokens", count()),
        ("output_tokens", count()),
        ("output_tokens_details", whole(vec![("thinking_tokens", count())])),
    ])
}

fn stop_reason() -> Value {
    words(&["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"])
}

fn blocks() -> [Value; 3] {
    [
        whole(vec![("type", only("text")), ("text", text())]),
        whole(vec![("type", only("thinking")), ("thinking", text()), ("signature", text())]),
        whole(vec![("type", only("tool_use")), ("id", text()), ("name", text()), ("input", any_object())]),
    ]
}

/// An answer; in a stream, as far as it is known at the beginning.
fn answer(facts: &Facts) -> Value {
    whole(vec![
        ("id", text()),
        ("type", only("message")),
        ("role", only("assistant")),
        ("model", only(facts.model)),
        ("content", array(any_of(blocks()))),
        ("stop_reason", or_null(stop_reason())),
        ("stop_sequence", or_null(text())),
        ("usage", usage()),
    ])
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
    let end = whole(vec![("stop_reason", or_null(stop_reason())), ("stop_sequence", or_null(text()))]);
    any_of([
        whole(vec![("type", only("message_start")), ("message", of("AnthropicAnswer"))]),
        whole(vec![("type", words(&["ping", "message_stop"]))]),
        whole(vec![
            ("type", only("content_block_start")),
            ("index", count()),
            ("content_block", any_of(blocks())),
        ]),
        whole(vec![("type", only("content_block_delta")), ("index", count()), ("delta", deltas)]),
        whole(vec![("type", only("content_block_stop")), ("index", count())]),
        whole(vec![("type", only("message_delta")), ("delta", end), ("usage", usage())]),
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
    whole(vec![("type", only("error")), ("error", whole(vec![("type", words(&kinds)), ("message", text())]))])
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
    let mut bodies = vec![
        ("text", json!({"messages": [question], "system": [{"type": "text", "text": "Be brief."}]})),
        ("tools", json!({"messages": conversation, "tools": [tool], "tool_choice": {"type": "auto"}})),
        ("thinking", json!({"messages": [question], "thinking": {"type": "enabled", "budget_tokens": 20}})),
    ];
    if !counts {
        bodies.push(("stream", json!({"messages": [question], "stream": true})));
        bodies.iter_mut().for_each(|(_, body)| body["max_tokens"] = 100.into());
    }
    let named = bodies.into_iter().map(|(name, body)| (name.to_owned(), json!({"value": body})));
    Value::Object(named.collect())
}

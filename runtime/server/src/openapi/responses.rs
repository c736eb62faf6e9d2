//! `/v1/responses`: what is answered, and examples.

use super::Facts;
use super::answers::{compacted, token_logprob};
use super::schema::{
    Properties, about, also, answer, any, any_object, any_of, array, boolean, count, integer, object, of,
    only, or_null, properties, text, whole, words,
};
use crate::openai::chat::EFFORTS;
use crate::openai::responses::items::{DEFAULT_LIMIT, MAX_LIMIT};
use crate::openai::responses::request::TRUNCATIONS;
use monomorph_sampling::MAX_TOP_LOGPROBS;
use serde_json::{Value, json};

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    properties! {
        Response: response(facts), ResponseOutputItem: output_item(), ResponseEvent: event(),
        ResponseItemList: list(), ResponseDeleted: deleted(),
    }
}

/// The response, as it is told and as it is kept.
fn response(facts: &Facts) -> Value {
    let nothing = || json!({"type": "null"});
    let usage = object! {
        input_tokens: count(),
        input_tokens_details: also(
            object! { cached_tokens: count(), cache_write_tokens: only(0) },
            properties! { compacted_tokens: compacted() },
        ),
        output_tokens: count(), output_tokens_details: object! { reasoning_tokens: count() },
        total_tokens: count(),
    };
    let error = object! { code: text(), message: text() };
    let cut = object! { reason: only("max_output_tokens") };
    let tool = object! {
        type: only("function"), name: text(), description: or_null(text()), parameters: any_object(),
        strict: boolean(),
    };
    object! {
        id: text(), object: only("response"), created_at: count(),
        status: words(&["in_progress", "completed", "incomplete", "failed", "cancelled"]), error: or_null(error),
        incomplete_details: or_null(cut), model: only(facts.model), output: array(of("ResponseOutputItem")),
        usage: or_null(usage), instructions: or_null(text()),
        max_output_tokens: or_null(integer(1..=facts.context as i64)), metadata: any(),
        parallel_tool_calls: boolean(), previous_response_id: or_null(text()),
        reasoning: object! { effort: or_null(words(&EFFORTS)), summary: nothing() }, store: boolean(),
        temperature: json!({"type": "number"}), text: object! { format: any_object() },
        tool_choice: any_of([words(&["none", "auto", "required"]), any_object()]), tools: array(tool),
        top_p: json!({"type": "number"}), truncation: words(&TRUNCATIONS), user: or_null(text()),
        background: boolean(), service_tier: only("default"), top_logprobs: integer(0..=i64::from(MAX_TOP_LOGPROBS)),
    }
}

/// A part of a message or of reasoning in the output.
fn output_part() -> Value {
    let nothing = || json!({"type": "array", "maxItems": 0});
    any_of([
        object! { type: only("output_text"), text: text(), annotations: nothing(), logprobs: array(token_logprob()) },
        object! { type: only("reasoning_text"), text: text() },
    ])
}

fn output_item() -> Value {
    let status = || words(&["in_progress", "completed", "incomplete"]);
    any_of([
        object! {
            id: text(), type: only("message"), status: status(), role: only("assistant"),
            content: array(output_part()),
        },
        object! {
            id: text(), type: only("reasoning"), status: status(),
            summary: json!({"type": "array", "maxItems": 0}), content: array(output_part()),
        },
        object! {
            id: text(), type: only("function_call"), status: status(), call_id: text(), name: text(),
            arguments: text(),
        },
    ])
}

/// An event of a stream, by its type.
fn event() -> Value {
    let event = |kinds: &[&str], own: Properties| {
        whole([vec![("type", words(kinds)), ("sequence_number", count())], own].concat())
    };
    let place = || vec![("item_id", text()), ("output_index", count())];
    let within = || properties! { item_id: text(), output_index: count(), content_index: only(0) };
    let logprobs = || ("logprobs", array(token_logprob()));
    any_of([
        event(
            &[
                "response.created",
                "response.in_progress",
                "response.completed",
                "response.incomplete",
                "response.failed",
            ],
            vec![("response", of("Response"))],
        ),
        event(
            &["response.output_item.added", "response.output_item.done"],
            vec![("output_index", count()), ("item", of("ResponseOutputItem"))],
        ),
        event(
            &["response.content_part.added", "response.content_part.done"],
            [within(), vec![("part", output_part())]].concat(),
        ),
        event(&["response.output_text.delta"], [within(), vec![("delta", text()), logprobs()]].concat()),
        event(&["response.output_text.done"], [within(), vec![("text", text()), logprobs()]].concat()),
        event(&["response.reasoning_text.delta"], [within(), vec![("delta", text())]].concat()),
        event(&["response.reasoning_text.done"], [within(), vec![("text", text())]].concat()),
        event(&["response.function_call_arguments.delta"], [place(), vec![("delta", text())]].concat()),
        event(
            &["response.function_call_arguments.done"],
            [place(), vec![("name", text()), ("arguments", text())]].concat(),
        ),
    ])
}

fn list() -> Value {
    object! {
        object: only("list"), data: array(json!({"type": "object", "required": ["id"]})), first_id: any(),
        last_id: any(), has_more: boolean(),
    }
}

fn deleted() -> Value {
    answer(
        &["id", "object", "deleted"],
        properties! { id: text(), object: only("response"), deleted: only(true) },
    )
}

/// What a list of items may be asked with.
pub(super) fn list_query() -> Properties {
    properties! {
        limit: json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
        order: json!({"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
        after: about("The id of an item: those behind it.", text()),
    }
}

/// Requests that show what there is.
pub(super) fn examples() -> Value {
    let tool = json!({
        "type": "function", "name": "get_weather", "description": "The weather somewhere", "strict": false,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    });
    json!({
        "text": {"value": {"input": "Write one sentence about the sea.", "instructions": "Be brief."}},
        "stream": {"value": {"input": "Write one sentence about the sea.", "stream": true}},
        "conversation": {"value": {"store": false, "tools": [tool], "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "Rain"}]},
        ]}},
    })
}

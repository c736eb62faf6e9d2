//! Requests that show what there is, of OpenAI's older routes.

use serde_json::{Value, json};

fn question() -> Value {
    json!([{"role": "user", "content": "Write one sentence about the sea."}])
}

fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather", "description": "The weather somewhere",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }})
}

fn with_calls() -> Value {
    let call = json!({"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"});
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]},
        {"role": "assistant", "content": null, "reasoning_content": "I look.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": call},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
    ])
}

pub(super) fn chat() -> Value {
    let schema = json!({"type": "object", "properties": {"sea": {"type": "string"}}, "required": ["sea"]});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "sea", "strict": true, "schema": schema}});
    json!({
        "text": {"value": {"messages": question(), "max_completion_tokens": 100, "temperature": 0.7, "seed": 1}},
        "stream": {"value": {"messages": question(), "stream": true, "stream_options": {"include_usage": true}}},
        "logprobs": {"value": {"messages": question(), "logprobs": true, "top_logprobs": 2, "n": 2}},
        "tools": {"value": {"messages": with_calls(), "tools": [tool()], "tool_choice": "auto"}},
        "schema": {"value": {"messages": question(), "response_format": format, "max_tokens": 100}},
        "thinking": {"value": {"messages": question(), "reasoning_effort": "low"}},
    })
}

pub(super) fn text() -> Value {
    json!({"text": {"value": {"prompt": "The sea is", "max_tokens": 20}}})
}

pub(super) fn completion() -> Value {
    json!({
        "text": {"value": {"prompt": "The sea is", "max_tokens": 20, "stop": ["\n"]}},
        "ids": {"value": {"prompt": [1, 2, 3], "max_tokens": 20, "logprobs": 2}},
        "several": {"value": {"prompt": ["The sea is", "The sky is"], "max_tokens": 20, "n": 2}},
        "scored": {"value": {"prompt": [[1, 2], [3, 4, 5]], "max_tokens": 0, "echo": true, "logprobs": 1}},
        "stream": {"value": {"prompt": "The sea is", "stream": true, "stream_options": {"include_usage": true}}},
        "regex": {"value": {"prompt": "The sea is", "structured_outputs": {"regex": "[a-z]{1,9}"}}},
    })
}

pub(super) fn tokenize() -> Value {
    json!({
        "text": {"value": {"prompt": "The sea is", "return_token_strs": true}},
        "chat": {"value": {"messages": with_calls(), "tools": [tool()]}},
    })
}

pub(super) fn detokenize() -> Value {
    json!({"ids": {"value": {"tokens": [1, 2, 3]}}})
}

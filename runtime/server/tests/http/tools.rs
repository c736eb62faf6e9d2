//! Tool calls, through the server: conversations there and back.
//!
//! Planted, and caught by `round_trip`: the model's own id passed over; ids too long for a template;
//! arguments left a string; tools shown that may not be called. By `how_many`: forbidden calls told as calls;
//! an answer that goes on behind its one call; a call cut off by the length that says it ended by itself. By
//! `choices`: one id for all calls. By `stops`: stop strings looked for in arguments; text held back for one
//! and lost before a call.

use crate::deltas::{accumulate, without_ids};
use crate::process::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// What the model was fed for a conversation.
fn prompt(server: &Server, body: &Value) -> String {
    let mut body = body.clone();
    body["return_token_strs"] = json!(true);
    let response = server.post("/tokenize", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let answer = response.json();
    answer["token_strs"].as_array().expect("texts").iter().filter_map(Value::as_str).collect()
}

pub fn round_trip() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let tool = json!({"type": "function", "function": {
        "name": "get_weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }});
    let said = "<think>\nWell.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>";
    let user = json!({"role": "user", "content": format!("[[say {said}]]")});
    let mut body = json!({"messages": [user], "tools": [tool], "tool_choice": "auto"});
    let answer = server.post(CHAT, &body).json();
    let message = answer["choices"][0]["message"].clone();
    assert_eq!(message["content"], "I look.\n");
    assert_eq!(message["reasoning_content"], "Well.");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], "{\"city\": \"Paris\", \"days\": 2}");
    let id = call["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("call_") && id.len() == 29, "{id}");
    // As clients send it back.
    let result =
        json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": "[[say Rain.]]"}]});
    body["messages"] = json!([{"role": "user", "content": "Hi"}, message, result]);
    let answer = server.post(CHAT, &body).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Rain.", "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let expected = format!(
        "<|im_start|>tools\n{tool}\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n(Well.)I look.\n\
         {{get_weather {id} city=\"Paris\" days=2}}<|im_end|>\n<|im_start|>tool get_weather {id}\n[[say Rain.]]<|im_end|>\n\
         <|im_start|>assistant\n",
        tool = "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"The weather\", \"parameters\": \
                {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}",
    );
    body.as_object_mut().expect("a body").remove("tool_choice");
    assert_eq!(prompt(&server, &body), expected);
    // With none to be called, the model hears of none.
    body["tool_choice"] = json!("none");
    assert!(!prompt(&server, &body).contains("<|im_start|>tools"));
    // Control tokens in results are text.
    body["messages"][2]["content"] = json!("<|im_end|>");
    let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
    let ends = tokens.as_array().expect("tokens").iter().filter(|id| **id == crate::scripted::STOP).count();
    assert_eq!(ends, 3, "those of the template");
    // A model's own id, where it stands before the name.
    let said = "<tool_call>{\"id\": \"own-1\", \"name\": \"get_weather\", \"arguments\": {}}</tool_call>";
    let user = json!({"role": "user", "content": format!("[[say {said}]]")});
    let answer = server.post(CHAT, &json!({"messages": [user], "tools": [tool]})).json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["id"], "own-1", "{answer}");
    // What the template refuses.
    body["messages"][1] = json!({"role": "system", "content": "late"});
    body["messages"].as_array_mut().expect("messages").truncate(2);
    let response = server.post(CHAT, &body);
    assert_eq!(response.status, 400);
    let error = response.json()["error"].clone();
    assert!(error["message"].as_str().expect("one").contains("System message must be at the beginning"));

    // A model's own id, and those made up for a template that wants nine characters.
    let server = Server::start_talking("mistral", "-", &["--hold-calls", "off"]);
    let said =
        "[TOOL_CALLS]get_weather[CALL_ID]aB3dE6gH9[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{\"city\": \"x\"}";
    let user = json!({"role": "user", "content": format!("[[say {said}]]")});
    let answer = server.post(CHAT, &json!({"messages": [user], "tools": [tool]})).json();
    let calls = &answer["choices"][0]["message"]["tool_calls"];
    assert_eq!(calls[0]["id"], "aB3dE6gH9", "{answer}");
    assert!(calls[1]["id"].as_str().is_some_and(|id| id.len() == 9), "{answer}");
}

const TWO: &str = "One <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call> two <tool_call>{\"name\": \"f\", \"arguments\": \
                   {}}</tool_call> three";

/// A request for [`TWO`], or another answer.
fn two(said: &str, fields: &Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let user = json!({"role": "user", "content": format!("[[say {said}]]")});
    let mut body = json!({"messages": [user], "tools": [tool]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

pub fn how_many() {
    let server = Server::start_talking("hermes", "-", &[]);
    let ask = |fields: &Value| {
        let mut body = two(TWO, fields);
        let whole = server.post(CHAT, &body).json();
        body["stream"] = json!(true);
        let streamed = accumulate(&server.post(CHAT, &body).events(), 0);
        let choice = &whole["choices"][0];
        assert_eq!(
            (without_ids(&streamed.0), &streamed.1),
            (without_ids(&choice["message"]), &choice["finish_reason"])
        );
        whole
    };
    let names = |answer: &Value| answer["choices"][0]["message"]["tool_calls"].as_array().map_or(0, Vec::len);
    let all = ask(&json!({}));
    assert_eq!((names(&all), &all["choices"][0]["message"]["content"]), (2, &json!("One two three")));
    let one = ask(&json!({"parallel_tool_calls": false}));
    let choice = &one["choices"][0];
    assert_eq!((names(&one), &choice["message"]["content"]), (1, &json!("One ")));
    assert_eq!(choice["finish_reason"], "tool_calls");
    // It ends with the brace that ends the object: no tag need come.
    let generated = TWO.find("}}").expect("an end") + 2;
    assert_eq!(one["usage"]["completion_tokens"], generated);
    let none = ask(&json!({"tool_choice": "none"}));
    let choice = &none["choices"][0];
    assert_eq!((names(&none), &choice["message"]["content"]), (0, &json!("One two three")));
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["rejected_markup"]),
        (&json!("stop"), &json!("f{\"a\": 1}f{}"))
    );
    // A call that is cut off by the length is one, and the length is why it ends.
    let cut = ask(&json!({"max_tokens": generated - 3}));
    assert_eq!((names(&cut), &cut["choices"][0]["finish_reason"]), (1, &json!("length")));
    let cut = ask(&json!({"max_tokens": generated - 3, "parallel_tool_calls": false}));
    assert_eq!((names(&cut), &cut["choices"][0]["finish_reason"]), (1, &json!("length")));
    // So may the server's own limit, unless the request has one.
    let limited = Server::start_talking("hermes", "-", &["--tool-max-tokens", "20"]);
    let tokens = |fields: &Value| {
        let answer = limited.post(CHAT, &two(TWO, fields)).json();
        (answer["usage"]["completion_tokens"].clone(), answer["choices"][0]["finish_reason"].clone())
    };
    assert_eq!(tokens(&json!({})), (json!(20), json!("length")));
    assert_eq!(tokens(&json!({"max_tokens": 25})), (json!(25), json!("length")));
    assert_eq!(tokens(&json!({"tool_choice": "none"})).1, "stop");
    // Without tools all of it is text.
    let mut body = two(TWO, &json!({}));
    body.as_object_mut().expect("a body").remove("tools");
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], TWO);
    server.wait_for("the blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
}

pub fn choices() {
    let server = Server::start_talking("hermes", "-", &[]);
    let body = two(TWO, &json!({"n": 3, "stream": true, "stream_options": {"include_usage": true}}));
    let events = server.post(CHAT, &body).events();
    let mut ids = Vec::new();
    for choice in 0..3 {
        let (message, reason) = accumulate(&events, choice);
        assert_eq!((&message["content"], &reason), (&json!("One two three"), &json!("tool_calls")));
        let calls = message["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), 2, "{message}");
        ids.extend(calls.iter().map(|call| call["id"].to_string()));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6, "each its own: {ids:?}");
}

pub fn stops() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let said = "<think>stop here</think>Text <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"stop\"}}</tool_call> and stop it";
    for stream in [false, true] {
        let body = two(said, &json!({"stop": ["stop"], "stream": stream}));
        let response = server.post(CHAT, &body);
        let message = if stream {
            accumulate(&response.events(), 0).0
        } else {
            response.json()["choices"][0]["message"].clone()
        };
        assert_eq!(message["reasoning_content"], "stop here");
        assert_eq!(message["content"], "Text and ");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\": \"stop\"}");
    }
    // What begins a stop string at the end of a stretch of text is given out before what follows.
    let body = two("Text st<tool_call>{\"name\": \"f\"}</tool_call>op", &json!({"stop": ["stop"]}));
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], "Text stop");
}

pub fn refusals() {
    let server = Server::start_talking("hermes", "think", &[]);
    let called = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
    ]});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let message = |message: Value| json!({"messages": [called, message]});
    for (fields, param, word) in [
        (json!({"tools": 5}), "tools", "array"),
        (json!({"tools": [5]}), "tools[0]", "object"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type", "not supported"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function", "required"),
        (json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name", "required"),
        (json!({"tools": [tool("a b")]}), "tools[0].function.name", "letters"),
        (json!({"tools": [tool("")]}), "tools[0].function.name", "letters"),
        (json!({"tools": [tool("f"), tool("f")]}), "tools[1].function.name", "another"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}),
            "tools[0].function.parameters",
            "object",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "colour": 1}}]}),
            "tools[0].function.colour",
            "not a field",
        ),
        (json!({"tool_choice": "maybe"}), "tool_choice", "maybe"),
        (json!({"tool_choice": 5}), "tool_choice", "number 5"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls", "boolean"),
        (message(json!({"role": "tool", "content": "x"})), "messages[1].tool_call_id", "required"),
        (
            message(json!({"role": "tool", "content": "x", "tool_call_id": "y"})),
            "messages[1].tool_call_id",
            "\"y\"",
        ),
        (message(json!({"role": "tool", "tool_call_id": "x"})), "messages[1].content", "required"),
        (
            message(json!({"role": "user", "content": "x", "tool_calls": [5]})),
            "messages[1].tool_calls",
            "assistant",
        ),
        (
            message(json!({"role": "assistant", "tool_calls": [{"id": "x"}]})),
            "messages[1].tool_calls[0].function",
            "required",
        ),
        (
            message(json!({"role": "assistant", "tool_calls": [{"id": "x", "type": "custom"}]})),
            "messages[1].tool_calls[0].type",
            "custom",
        ),
        (message(json!({"role": "assistant", "tool_calls": []})), "messages[1].content", "required"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort", "huge"),
        (json!({"reasoning_effort": 5}), "reasoning_effort", "string"),
        (
            json!({"chat_template_kwargs": {"enable_thinking": "no"}}),
            "chat_template_kwargs.enable_thinking",
            "boolean",
        ),
        (
            json!({"chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low"}),
            "chat_template_kwargs.enable_thinking",
            "contradicts",
        ),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let response = server.post(CHAT, &body);
        let error = &response.json()["error"];
        assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{fields}: {error}");
        assert!(error["message"].as_str().is_some_and(|it| it.contains(word)), "{fields}: {error}");
    }
}

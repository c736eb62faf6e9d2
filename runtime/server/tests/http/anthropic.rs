//! Anthropic's messages, through the server.
//!
//! Planted, and caught by `answers`: thinking blocks without a signature in streams; a stop sequence that is
//! not named. By `conversations`: turns not joined; results of tools before all else. By `refusals`: errors
//! in the other vendor's envelope, here, and this one's elsewhere.

use crate::client::Response;
use crate::process::Server;
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
/// Thinks, speaks, calls twice.
const SAID: &str = "<think>\nHm.\n</think>\n\nI look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": \
                    \"g\"}</tool_call>";

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn saying(said: &str, fields: &Value) -> Value {
    let message = json!({"role": "user", "content": format!("[[say {said}]]")});
    with(json!({"model": "talk", "max_tokens": 400, "messages": [message]}), fields)
}

fn tools() -> Value {
    json!([{"name": "f", "description": "Does f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
           {"name": "g", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}])
}

/// The events of a stream, each with its name.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = response.text().strip_suffix("\n\n").expect("the last event is ended");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{data}");
        data
    };
    text.split("\n\n").map(event).collect()
}

/// The message that events make, ids left out. Panics where they are not in order.
fn accumulate(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("message_start"), &json!("ping")));
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let mut open: Option<(usize, String)> = None;
    let mut ended = false;
    for event in &events[2..] {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        let content = message["content"].as_array_mut().expect("blocks");
        assert!(!ended, "{event} behind the end");
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert!(open.is_none() && index == content.len(), "{event}");
                content.push(event["content_block"].clone());
                open = Some((index, String::new()));
            }
            "content_block_delta" => {
                let (at, json) = open.as_mut().expect("an open block");
                assert_eq!(index, *at);
                let (block, delta) = (&mut content[index], &event["delta"]);
                let add = |block: &mut Value, field: &str| {
                    let more = delta[field].as_str().expect("text");
                    assert!(!more.is_empty(), "{event}");
                    block[field] = (block[field].as_str().expect("text").to_owned() + more).into();
                };
                match (delta["type"].as_str().expect("a type"), block["type"].as_str().expect("a type")) {
                    ("text_delta", "text") => add(block, "text"),
                    ("thinking_delta", "thinking") => add(block, "thinking"),
                    ("signature_delta", "thinking") => add(block, "signature"),
                    ("input_json_delta", "tool_use") => {
                        json.push_str(delta["partial_json"].as_str().expect("text"));
                    }
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" => {
                let (at, json) = open.take().expect("an open block");
                assert_eq!(index, at);
                if content[index]["type"] == "tool_use" {
                    content[index]["input"] = serde_json::from_str(&json).expect("JSON");
                }
            }
            "message_delta" => {
                assert!(open.is_none() && message["stop_reason"].is_null(), "{event}");
                for (name, value) in event["delta"].as_object().expect("a delta") {
                    message[name] = value.clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => ended = true,
            "ping" => {}
            other => panic!("{other}"),
        }
    }
    assert!(ended);
    message
}

fn without_ids(mut message: Value) -> Value {
    assert!(message["id"].as_str().is_some_and(|id| id.starts_with("msg_")), "{message}");
    message["id"].take();
    for block in message["content"].as_array_mut().expect("blocks") {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().is_some_and(|id| !id.is_empty()), "{block}");
            block["id"].take();
        }
    }
    // What the cache had differs from one time to the next.
    let usage = &mut message["usage"];
    let prompt = usage["input_tokens"].as_u64().expect("a count")
        + usage["cache_read_input_tokens"].as_u64().expect("a count");
    usage["input_tokens"] = prompt.into();
    usage["cache_read_input_tokens"] = 0.into();
    message
}

/// An answer, which is the same in a stream.
fn ask(server: &Server, body: &Value) -> Value {
    let response = server.post(MESSAGES, body);
    assert_eq!(response.status, 200, "{}", response.text());
    let whole = without_ids(response.json());
    let streamed = accumulate(&events(&server.post(MESSAGES, &with(body.clone(), &json!({"stream": true})))));
    assert_eq!(without_ids(streamed), whole);
    whole
}

pub fn answers() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let body = saying(SAID, &json!({"tools": tools(), "thinking": {"type": "adaptive"}}));
    // The template opens the reasoning.
    let body =
        with(body, &json!({"messages": [{"role": "user", "content": format!("[[say {}]]", &SAID[8..])}]}));
    let answer = ask(&server, &body);
    let content = answer["content"].as_array().expect("blocks");
    assert_eq!((&content[0]["type"], &content[0]["thinking"]), (&json!("thinking"), &json!("Hm.")));
    assert!(content[0]["signature"].as_str().is_some_and(|signature| !signature.is_empty()));
    assert_eq!(content[1], json!({"type": "text", "text": "I look."}));
    assert_eq!(content[2], json!({"type": "tool_use", "id": null, "name": "f", "input": {"a": 1}}));
    assert_eq!(content[3], json!({"type": "tool_use", "id": null, "name": "g", "input": {}}));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("tool_use"), &Value::Null));
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["model"]),
        (&json!("message"), &json!("assistant"), &json!("talk"))
    );
    assert_eq!(answer["usage"]["output_tokens"], SAID.len() - 8 + 1);
    let counted = server.post(COUNT, &{
        let mut body = body.clone();
        body.as_object_mut().expect("a body").remove("max_tokens");
        body
    });
    assert_eq!(counted.json(), json!({"input_tokens": answer["usage"]["input_tokens"]}));

    let one = json!({"tools": tools(), "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let content = ask(
        &server,
        &saying("<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>", &one),
    )["content"]
        .clone();
    assert_eq!(content.as_array().map(Vec::len), Some(1), "{content}");
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    let answer = ask(&server, &saying("<tool_call>{\"name\": \"f\"}</tool_call>No.", &none));
    assert_eq!(
        (&answer["content"], &answer["stop_reason"]),
        (&json!([{"type": "text", "text": "No."}]), &json!("end_turn"))
    );

    let answer = ask(
        &server,
        &saying(
            "Once upon",
            &json!({"stop_sequences": ["x", "up"], "temperature": 0.5, "top_k": 3, "top_p": 0.9}),
        ),
    );
    assert_eq!(answer["content"], json!([{"type": "text", "text": "Once "}]));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!("up")));
    let answer = ask(&server, &saying("Once upon", &json!({"max_tokens": 4, "metadata": {"user_id": "me"}})));
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["text"]),
        (&json!("max_tokens"), &json!("Once"))
    );
    assert_eq!(ask(&server, &saying("", &json!({})))["content"], json!([]));
    server.wait_for("the blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
    let server = Server::start_talking("-", "-", &["--context", "256"]);
    let endless = json!({"max_tokens": 256, "messages": [{"role": "user", "content": "[[forever]]"}]});
    assert_eq!(ask(&server, &endless)["stop_reason"], "model_context_window_exceeded");
}

/// What the model is fed, by the last messages' command.
fn prompt(server: &Server, openai: &Value) -> String {
    let answer = server.post("/tokenize", &with(openai.clone(), &json!({"return_token_strs": true}))).json();
    let texts = answer["token_strs"].as_array().unwrap_or_else(|| panic!("{answer}"));
    texts.iter().filter_map(Value::as_str).collect()
}

/// Both vendors' words for one conversation are one prompt: it has as many tokens, and the second finds the
/// first in the cache.
pub fn conversations() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let cached = json!({"type": "ephemeral"});
    let body = json!({
        "model": "talk", "max_tokens": 100, "tools": tools(), "cache_control": cached,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cached}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}}, {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "no such thing", "is_error": true},
                {"type": "text", "text": "And?"},
            ]},
            {"role": "system", "content": "Be quick."},
            {"role": "user", "content": "[[say So.]]"},
        ],
    });
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let function = |name: &str, parameters: Value| json!({"name": name, "parameters": parameters});
    let described = json!({"name": "f", "description": "Does f", "parameters": tools()[0]["input_schema"]});
    let openai = json!({
        "tools": [
            {"type": "function", "function": described},
            {"type": "function", "function": function("g", json!({"type": "object"}))},
        ],
        "reasoning_effort": "none",
        "messages": [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "Hi\nthere"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call("a", "f", "{\"a\": 1}"), call("b", "g", "")]},
            {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: no such thing"},
            {"role": "user", "content": "And?\nBe quick.\n[[say So.]]"},
        ],
    });
    let expected = prompt(&server, &openai);
    let first = server.post("/v1/chat/completions", &openai).json();
    let tokens = first["usage"]["prompt_tokens"].as_u64().expect("a count");
    let answer = server.post(MESSAGES, &body).json();
    assert_eq!(answer["content"], json!([{"type": "text", "text": "So."}]), "{answer}");
    let usage = &answer["usage"];
    let (new, cached) = (
        usage["input_tokens"].as_u64().expect("one"),
        usage["cache_read_input_tokens"].as_u64().expect("one"),
    );
    assert_eq!(new + cached, tokens, "{expected}");
    assert!(new <= 16, "all whole blocks are the same: {usage}");
}

/// A block whose text is omitted says in its signature what the model thought: sent back, it is the same
/// prompt as the text itself.
pub fn omitted_thinking() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let user = json!({"role": "user", "content": format!("[[say {}]]", &SAID[8..])});
    let asked = |display: &str| {
        let thinking = json!({"type": "adaptive", "display": display});
        json!({"max_tokens": 100, "tools": tools(), "messages": [user], "thinking": thinking})
    };
    let [shown, omitted] = ["summarized", "omitted"].map(|display| ask(&server, &asked(display)));
    let told = &omitted["content"][0];
    assert_eq!((&told["type"], &told["thinking"]), (&json!("thinking"), &json!("")), "{told}");
    assert_eq!(shown["content"][0]["thinking"], "Hm.");
    let rest = |answer: &Value| answer["content"].as_array().map(|blocks| blocks[1..].to_vec());
    assert_eq!(rest(&omitted), rest(&shown));
    assert_eq!(omitted["usage"]["output_tokens"], shown["usage"]["output_tokens"]);
    assert_eq!(omitted["usage"]["output_tokens_details"], shown["usage"]["output_tokens_details"]);
    let streamed = server.post(MESSAGES, &with(asked("omitted"), &json!({"stream": true})));
    assert!(!streamed.text().contains("thinking_delta"), "{}", streamed.text());

    let tokens = |block: &Value| {
        let said = json!({"role": "assistant", "content": [block, {"type": "text", "text": "I look."}]});
        let messages = json!([user, said, {"role": "user", "content": "And?"}]);
        let response = server.post(COUNT, &json!({"messages": messages}));
        (response.status, response.json())
    };
    let (_, whole) = tokens(&shown["content"][0]);
    assert_eq!(tokens(told), (200, whole.clone()));
    let (_, without) = tokens(&json!({"type": "thinking", "thinking": "", "signature": ""}));
    assert_ne!(without, whole, "the template shows no reasoning of before, and this test nothing");
    let mut cut = told.clone();
    let signature = told["signature"].as_str().expect("a signature");
    cut["signature"] = signature[..signature.len() - 4].into();
    let (status, error) = tokens(&cut);
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(status, 400, "{error}");
    assert!(
        message.contains("messages[1].content[0].signature") && message.contains("as it came"),
        "{message}"
    );
}

/// A tool that is loaded later is not in the prompt, nor can be called, until a result refers to it: then the
/// prompt is that of a request which has it as any other, and its name as the result.
pub fn deferred_tools() {
    let server = Server::start_talking("hermes", "think", &[]);
    let later = |name: &str| json!({"name": name, "defer_loading": true, "input_schema": {"type": "object"}});
    let now = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let found = |content: Value| {
        json!([
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]},
        ])
    };
    let reference = |name: &str| json!([{"type": "tool_reference", "tool_name": name}]);
    let count = |tools: Value, messages: &Value| {
        let response = server.post(COUNT, &json!({"tools": tools, "messages": messages}));
        (response.status, response.json())
    };
    let (plain, loaded) = (found(json!("nothing")), found(reference("g")));
    let deferred = json!([later("f"), now("search"), later("g")]);
    let searched = count(json!([now("search")]), &plain);
    assert_eq!(searched.0, 200, "{}", searched.1);
    assert_eq!(count(deferred.clone(), &plain), searched);
    let with_g = count(json!([now("search"), now("g")]), &found(json!("g")));
    assert_eq!(count(deferred.clone(), &loaded), with_g);
    assert_ne!(with_g, searched);

    let call = |name: &str, messages: &Value| {
        let mut messages = messages.clone();
        let said = format!("[[say <tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>]]");
        messages.as_array_mut().expect("messages").push(json!({"role": "user", "content": said}));
        let body = json!({"max_tokens": 100, "tools": deferred, "messages": messages});
        let answer = server.post(MESSAGES, &body).json();
        answer["content"][0]["name"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(call("g", &loaded), "g");
    assert_ne!(call("f", &loaded), "f", "it was not loaded");

    let (status, error) = count(deferred.clone(), &found(reference("h")));
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(status, 400, "{error}");
    assert!(
        message.contains("messages[2].content[0].content[0].tool_name") && message.contains("\"h\""),
        "{message}"
    );
}

pub fn edits() {
    let server = Server::start_talking("hermes", "think", &[]);
    let call = |id: &str| {
        json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": format!("Hm, {id}."), "signature": "x"},
            {"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}},
        ]})
    };
    let result = |id: &str| {
        let said = format!("what {id} found ").repeat(20);
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": said}]})
    };
    let question = |text: &str| json!({"role": "user", "content": text});
    let messages =
        json!([question("One?"), call("a"), result("a"), call("b"), result("b"), question("[[say So.]]")]);
    let plain = json!({"model": "talk", "tools": tools(), "messages": messages});
    let of_results = |fields: Value| with(json!({"type": "clear_tool_uses_20250919"}), &fields);
    let calls = |value: usize| json!({"type": "tool_uses", "value": value});
    let edited = |edits: Value| with(plain.clone(), &json!({"context_management": {"edits": edits}}));
    let counted = |body: &Value| {
        let response = server.post(COUNT, body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    let all = counted(&plain)["input_tokens"].as_u64().expect("a count");
    let one = of_results(json!({"trigger": calls(1), "keep": calls(1)}));
    let none = of_results(json!({"trigger": calls(1), "keep": calls(0), "exclude_tools": ["f"]}));
    let too_few = with(one.clone(), &json!({"clear_at_least": {"type": "input_tokens", "value": 100_000}}));
    let thinking = json!({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}});
    for (edits, kinds) in [
        (json!([]), &[][..]),
        (json!([of_results(json!({}))]), &[]),
        (json!([none]), &[]),
        (json!([too_few]), &[]),
        (json!([{"type": "clear_thinking_20251015", "keep": "all"}]), &[]),
        (json!([one]), &["cleared_tool_uses"]),
        (json!([thinking, one]), &["cleared_thinking_turns", "cleared_tool_uses"]),
    ] {
        let body = edited(edits);
        let count = counted(&body);
        assert_eq!(count["context_management"]["original_input_tokens"], all, "{body}");
        let left = count["input_tokens"].as_u64().expect("a count");
        let body = with(body, &json!({"max_tokens": 100}));
        let answer = server.post(MESSAGES, &body).json();
        let usage = &answer["usage"];
        let asked =
            ["input_tokens", "cache_read_input_tokens"].map(|it| usage[it].as_u64().expect("a count"));
        assert_eq!(asked.iter().sum::<u64>(), left, "{answer}");
        let applied = answer["context_management"]["applied_edits"].as_array().expect("edits");
        assert_eq!(applied.len(), kinds.len(), "{body}: {answer}");
        for (edit, kind) in applied.iter().zip(kinds) {
            assert_eq!(edit[kind], 1, "{answer}");
        }
        let cleared = applied.iter().map(|edit| edit["cleared_input_tokens"].as_u64().expect("a count"));
        assert_eq!(cleared.sum::<u64>(), all - left, "{answer}");
        let events = events(&server.post(MESSAGES, &with(body, &json!({"stream": true}))));
        let told: Vec<&Value> =
            events.iter().filter(|event| event.get("context_management").is_some()).collect();
        assert_eq!(told.len(), 1);
        assert_eq!(
            (&told[0]["type"], &told[0]["context_management"]),
            (&json!("message_delta"), &answer["context_management"])
        );
    }
    let answer = server.post(MESSAGES, &with(plain, &json!({"max_tokens": 100}))).json();
    assert!(answer.get("context_management").is_none(), "{answer}");
}

pub fn refusals() {
    let server = Server::start_talking("hermes", "think", &[]);
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let user = json!({"role": "user", "content": "a"});
    for (fields, words) in [
        (json!({"max_tokens": null}), &["`max_tokens`", "required"][..]),
        (json!({"max_tokens": 0}), &["`max_tokens`", "at least 1"]),
        (json!({"max_tokens": 100_000}), &["`max_tokens`", "100000", "8192"]),
        (json!({"messages": []}), &["`messages`", "empty"]),
        (json!({"messages": [{"role": "king", "content": "x"}]}), &["messages[0].role", "king"]),
        (json!({"messages": [{"role": "user"}]}), &["messages[0].content", "required"]),
        (json!({"messages": [user, {"role": "assistant", "content": "b "}]}), &["messages[1]", "whitespace"]),
        (json!({"messages": [user, {"role": "assistant", "content": ""}]}), &["messages[1]", "no text"]),
        (
            json!({"messages": [user, {"role": "assistant", "content": [
                {"type": "text", "text": "b"}, {"type": "tool_use", "id": "x", "name": "f", "input": {}},
            ]}]}),
            &["messages[1]", "calls tools"],
        ),
        (
            json!({
                "messages": [user, {"role": "assistant", "content": "b"}],
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            }),
            &["thinking", "goes on with"],
        ),
        (
            block(json!({"type": "image", "source": {}})),
            &["messages[0].content[0]", "images, for which a model has to be built with `--vision on`"],
        ),
        (block(json!({"type": "text"})), &["messages[0].content[0].text", "required"]),
        (
            block(json!({"type": "tool_result", "tool_use_id": "x"})),
            &["messages[0].content[0].tool_use_id", "\"x\""],
        ),
        (json!({"temperature": 3}), &["temperature"]),
        (json!({"stop_sequences": [""]}), &["stop_sequences[0]", "empty"]),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            &["tools[0].type", "web_search_20250305"],
        ),
        (json!({"tools": [{"name": "f"}, {"name": "f"}]}), &["tools[1].name"]),
        (json!({"tool_choice": {"type": "any"}}), &["tool_choice.type", "none to call"]),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), &["tool_choice.name", "not among `tools`"]),
        (json!({"thinking": {"type": "on"}}), &["thinking.type"]),
        (json!({"thinking": {"type": "enabled"}}), &["thinking.budget_tokens", "required"]),
        (json!({"thinking": {"type": "adaptive", "display": "omited"}}), &["thinking.display", "omitted"]),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 90}, "max_tokens": 90}),
            &["thinking.budget_tokens", "less than `max_tokens`"],
        ),
        (
            json!({"thinking": {"type": "adaptive", "budget_tokens": 9}}),
            &["thinking.budget_tokens", "enabled"],
        ),
        (json!({"output_config": {"effort": "low"}}), &["output_config.effort", "without thinking"]),
        (json!({"mcp_servers": [{}]}), &["mcp_servers", "not supported"]),
        (json!({"colour": 1}), &["`colour`", "not a field"]),
    ] {
        let response = server.post(MESSAGES, &saying("Hi", &fields));
        let body = response.json();
        assert_eq!((response.status, &body["type"]), (400, &json!("error")), "{fields}: {body}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
        let message = body["error"]["message"].as_str().expect("a message");
        for word in words {
            assert!(message.contains(word), "{fields}: {word:?} is not in {message:?}");
        }
        assert_eq!(body["error"].as_object().map(serde_json::Map::len), Some(2), "{body}");
        assert!(response.header("request-id").is_some_and(|id| Some(id) == response.header("x-request-id")));
    }
    let kind =
        |response: &Response| (response.status, response.json()["error"]["type"].as_str().map(str::to_owned));
    let error = |status: u16, kind: &str| (status, Some(kind.to_owned()));
    assert_eq!(
        kind(&server.post(MESSAGES, &saying("Hi", &json!({"model": "claude"})))),
        error(404, "not_found_error")
    );
    assert_eq!(kind(&server.get(MESSAGES)), error(405, "invalid_request_error"));
    let response = server.connect().request("POST", MESSAGES, &[], b"{");
    assert_eq!(kind(&response), error(400, "invalid_request_error"));
    // Other routes keep OpenAI's.
    assert_eq!(server.post("/v1/chat/completions", &json!({})).json()["error"]["param"], "messages");
    let folder = tempfile::tempdir().expect("a directory");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "secret-of-sixteen-bytes\n").expect("written");
    let server = Server::start_talking(
        "-",
        "-",
        &["--api-key-file", keys.to_str().expect("UTF-8"), "--max-body", "1000"],
    );
    assert_eq!(kind(&server.post(MESSAGES, &saying("Hi", &json!({})))), error(401, "authentication_error"));
    let headers = [("x-api-key", "secret-of-sixteen-bytes")];
    let body = saying(&"x".repeat(2000), &json!({})).to_string();
    let response = server.connect().request("POST", MESSAGES, &headers, body.as_bytes());
    assert_eq!(kind(&response), error(413, "request_too_large"));
    let body = saying("Hi", &json!({})).to_string();
    let response = server.connect().request("POST", MESSAGES, &headers, body.as_bytes());
    assert_eq!(response.json()["content"][0]["text"], "Hi");
}

/// A stream that breaks off says so in Anthropic's words.
pub fn broken_streams() {
    let server = Server::start_talking("-", "-", &["--request-timeout", "1"]);
    let response = server.post(
        MESSAGES,
        &with(
            saying("", &json!({"stream": true})),
            &json!({"messages": [{"role": "user", "content": "[[forever]]"}], "max_tokens": 8000}),
        ),
    );
    let events = events(&response);
    let last = events.last().expect("events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("timeout_error")), "{last}");
}

//! Every refusal is clear, and the next request is answered.

use crate::process::Server;
use crate::scripted::{CONTEXT, GREETING};
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A chat that is answered, with further fields.
fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "echo", "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// Asks for an answer and gets it.
fn still_serves(server: &Server) {
    let response = server.post(CHAT, &chat(json!({})));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["choices"][0]["message"]["content"], GREETING);
}

/// Checks an error envelope; every one of `words` must be in the message.
fn check(what: &str, response: &crate::client::Response, status: u16, param: Option<&str>, words: &[&str]) {
    let error = &response.json()["error"];
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{what}: {}", response.text()));
    assert_eq!(response.status, status, "{what}: {message}");
    assert_eq!(error["param"].as_str(), param, "{what}: {message}");
    for word in words {
        assert!(message.contains(word), "{what}: {word:?} is not in {message:?}");
    }
    for field in ["type", "code"] {
        assert!(error[field].as_str().is_some_and(|word| !word.is_empty()), "{what}: no {field}");
    }
    assert_eq!(response.header("content-type"), Some("application/json"));
}

pub fn every_refusal() {
    let server = Server::start(&[]);
    for path in [CHAT, TEXT] {
        let deep = "[".repeat(100_000);
        let response = server.connect().request("POST", path, &[], deep.as_bytes());
        check("deep", &response, 400, None, &["nested deeper than the 127 levels"]);
        let response = server.connect().request("POST", path, &[], b"{\"a\": \"\xff\"}");
        check("not UTF-8", &response, 400, None, &["JSON"]);
    }

    let long = "x".repeat(CONTEXT);
    let context = CONTEXT.to_string();
    // Of a model that knows no calls and no reasoning; `refused/*.txt` have what is refused of any.
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (fields, param, words) in [
        (json!({"tools": tool}), "tools", &["no form of tool calls", "not supported"][..]),
        (json!({"tool_choice": "required"}), "tool_choice", &["none to call"]),
        (json!({"reasoning_effort": "high"}), "reasoning_effort", &["not supported"]),
        (json!({"messages": [{"role": "user", "content": long}]}), "messages", &["tokens", &context]),
    ] {
        check(&fields.to_string(), &server.post(CHAT, &chat(fields.clone())), 400, Some(param), words);
    }
    // Both lengths are named: 512 bytes, and ChatML's 6 markers and line breaks around the roles "user" and
    // "assistant".
    let tokens = (CONTEXT + 1 + 4 + 1 + 1 + 1 + 1 + 9 + 1).to_string();
    let response = server.post(CHAT, &chat(json!({"messages": [{"role": "user", "content": long}]})));
    check("both lengths", &response, 400, Some("messages"), &[&tokens, &context]);

    let long = json!({"prompt": vec![1; CONTEXT]});
    check("many ids", &server.post(TEXT, &long), 400, Some("prompt"), &["512 tokens", &context]);
    still_serves(&server);
    // Nothing refused is in the engine; the discarded row of the last step may still be.
    server.wait_for("all blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
}

pub fn bodies_over_the_limit() {
    let server = Server::start(&["--max-body", "1000"]);
    let body = chat(json!({"user": "x".repeat(5000)})).to_string();
    let response = server.connect().request("POST", CHAT, &[], body.as_bytes());
    check("announced", &response, 413, None, &["1000"]);
    // A client that asks first is told without sending.
    let mut connection = server.connect();
    connection.raw(
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n")
            .as_bytes(),
    );
    check("expecting", &connection.response(), 413, None, &["1000"]);
    // One that does not announce its length is read up to the limit.
    let mut connection = server.connect();
    connection
        .raw(format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
    for chunk in body.as_bytes().chunks(500) {
        connection.raw(format!("{:x}\r\n", chunk.len()).as_bytes());
        connection.raw(chunk);
        connection.raw(b"\r\n");
    }
    connection.raw(b"0\r\n\r\n");
    check("chunked", &connection.response(), 413, None, &["1000"]);
    still_serves(&server);
}

pub fn paths_and_methods() {
    let server = Server::start(&[]);
    check("path", &server.get("/v1/nothing"), 404, None, &["/v1/nothing", "/openapi.json"]);
    let method = server.get(CHAT);
    check("method", &method, 405, None, &["GET", CHAT, "`Allow`"]);
    assert_eq!(method.header("allow"), Some("POST"));
    check("method", &server.post("/health", &json!({})), 405, None, &["POST"]);
    check("model", &server.get("/v1/models/gpt-4"), 404, Some("model"), &["gpt-4"]);
    still_serves(&server);
}

pub fn harmless_fields() {
    let server = Server::start(&[]);
    let fields = json!({
        "user": "me", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "n": 1, "tools": [],
        "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}, "temperature": null,
        "parallel_tool_calls": true, "top_k": -1, "seed": -5, "stop": null, "modalities": ["text"],
        "frequency_penalty": 0.5, "repetition_penalty": 1.1, "model": "cpu/echo/none",
    });
    let response = server.post(CHAT, &chat(fields));
    assert_eq!(response.status, 200, "{}", response.text());
    // Ignored fields are reported and counted.
    assert_eq!(response.header("x-monomorph-ignored"), Some("metadata, store, service_tier"));
    let ignored = |server: &Server, body: Value, path: &str| {
        let response = server.post(path, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.header("x-monomorph-ignored").map(str::to_owned)
    };
    assert_eq!(ignored(&server, chat(json!({"store": null})), CHAT), None);
    let streamed = chat(json!({"stream": true, "safety_identifier": "me"}));
    assert_eq!(ignored(&server, streamed, CHAT).as_deref(), Some("safety_identifier"));
    let text = json!({"prompt": "Hi", "store": true});
    assert_eq!(ignored(&server, text, TEXT).as_deref(), Some("store"));
    let response = json!({"input": "Hi", "store": true, "service_tier": "auto"});
    assert_eq!(ignored(&server, response, "/v1/responses").as_deref(), Some("service_tier"));
    let message =
        json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "service_tier": "auto"});
    assert_eq!(ignored(&server, message, "/v1/messages").as_deref(), Some("service_tier"));
    // What sglang-router and vllm-router add.
    let chats = json!({
        "logprobs": false, "ignore_eos": false, "no_stop_trim": false, "continue_final_message": false,
        "return_hidden_states": false, "skip_special_tokens": true, "separate_reasoning": true,
        "stream_reasoning": true, "include_reasoning": true,
    });
    assert_eq!(ignored(&server, chat(chats), CHAT), None);
    let text = json!({
        "prompt": "Hi", "no_stop_trim": false, "return_hidden_states": false, "skip_special_tokens": true,
    });
    assert_eq!(ignored(&server, text, TEXT), None);
    let response = json!({
        "input": "Hi", "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
        "priority": 0,
    });
    assert_eq!(ignored(&server, response, "/v1/responses"), None);
    let counted = |field: &str| {
        let metrics = server.get("/metrics");
        let line = metrics.text().lines().find(|line| {
            line.starts_with("monomorph:ignored_fields_total{")
                && line.contains(&format!("field=\"{field}\""))
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    let counts = ["store", "service_tier", "metadata", "user"].map(counted);
    assert_eq!(counts, [Some(2), Some(3), Some(1), None]);
    let parts = json!([{"type": "text", "text": "[[say "}, {"type": "text", "text": "parts]]"}]);
    let messages = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]);
    let response = server.post(CHAT, &json!({"messages": messages}));
    assert_eq!(response.json()["choices"][0]["message"]["content"], "parts", "{}", response.text());
}

pub fn full_queue() {
    // Room for one sequence, and one that waits.
    let server = Server::start(&["--context", "512", "--kv-tokens", "512", "--max-waiting", "1"]);
    // Of different tokens, or one would take the memory of the other.
    let endless = |filler: &str| {
        let body = json!({"prompt": format!("{}[[forever]]", filler.repeat(290)), "max_tokens": 200, "stream": true});
        let mut connection = server.connect();
        connection.send("POST", TEXT, &[], body.to_string().as_bytes());
        connection
    };
    let mut running = endless(" ");
    running.read_until("data: ");
    let waiting = endless(".");
    server.wait_for("one to wait", |stats| stats["waiting"] == 1);
    let refused = server.post(TEXT, &json!({"prompt": "Hi"}));
    check("full", &refused, 429, None, &["1"]);
    let wait: Option<u32> = refused.header("retry-after").and_then(|seconds| seconds.parse().ok());
    assert!(wait.is_some_and(|seconds| (1..=60).contains(&seconds)), "{wait:?}");
    drop((running, waiting));
    server.wait_for("both to go", |stats| stats["waiting"] == 0 && stats["running"] == 0);
    std::thread::sleep(Duration::from_millis(1));
    still_serves(&server);
}

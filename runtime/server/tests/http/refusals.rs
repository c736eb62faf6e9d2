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
        for (body, words) in [
            ("{\"model\": \n  oops}", &["line 2", "column"][..]),
            ("", &["JSON"]),
            ("{} {}", &["trailing"]),
            ("[1]", &["object", "array"]),
            ("{\"messages\": \"\\ud800\"}", &["JSON"]),
        ] {
            let response = server.connect().request("POST", path, &[], body.as_bytes());
            check(body, &response, 400, None, words);
        }
        let deep = "[".repeat(100_000);
        let response = server.connect().request("POST", path, &[], deep.as_bytes());
        check("deep", &response, 400, None, &["nested deeper than the 127 levels"]);
        let response = server.connect().request("POST", path, &[], b"{\"a\": \"\xff\"}");
        check("not UTF-8", &response, 400, None, &["JSON"]);
    }

    let long = "x".repeat(CONTEXT);
    let context = CONTEXT.to_string();
    let cases: &[(Value, u16, &str, &[&str])] = &[
        (json!({"max_tokens": -1}), 400, "max_tokens", &["at least 1", "-1"]),
        (json!({"max_tokens": 0}), 400, "max_tokens", &["at least 1"]),
        (json!({"max_tokens": 1_000_000_000}), 400, "max_tokens", &["1000000000", &context]),
        (json!({"max_tokens": u64::MAX}), 400, "max_tokens", &["18446744073709551615"]),
        (json!({"max_completion_tokens": -5}), 400, "max_completion_tokens", &["-5"]),
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            400,
            "max_completion_tokens",
            &["contradicts"],
        ),
        (json!({"max_tokens": 1.5}), 400, "max_tokens", &["integer", "1.5"]),
        (json!({"max_tokens": "5"}), 400, "max_tokens", &["integer", "string"]),
        (json!({"max_tokens": true}), 400, "max_tokens", &["integer", "true"]),
        (json!({"temperature": -0.1}), 400, "temperature", &["temperature"]),
        (json!({"temperature": 2.1}), 400, "temperature", &["temperature"]),
        (json!({"temperature": 1e300}), 400, "temperature", &["from 0 to 2", "1e+300"]),
        (json!({"temperature": "hot"}), 400, "temperature", &["number", "string"]),
        (json!({"top_p": 1.5}), 400, "top_p", &["top_p"]),
        (json!({"top_k": -2}), 400, "top_k", &["top_k"]),
        (json!({"min_p": 2}), 400, "min_p", &["min_p"]),
        (json!({"presence_penalty": 3}), 400, "presence_penalty", &["presence_penalty"]),
        (json!({"frequency_penalty": -3}), 400, "frequency_penalty", &["frequency_penalty"]),
        (json!({"repetition_penalty": 0}), 400, "repetition_penalty", &["repetition_penalty"]),
        (json!({"seed": 0.5}), 400, "seed", &["integer"]),
        (json!({"priority": "high"}), 400, "priority", &["integer", "string"]),
        (json!({"priority": 1.5}), 400, "priority", &["integer"]),
        (json!({"user": 7}), 400, "user", &["string", "number 7"]),
        (json!({"stream": "yes"}), 400, "stream", &["boolean"]),
        (json!({"stream_options": {"include_usage": true}}), 400, "stream_options", &["stream"]),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            400,
            "stream_options.include_usage",
            &[],
        ),
        (
            json!({"stream": true, "stream_options": {"include": 1}}),
            400,
            "stream_options.include",
            &["not a field"],
        ),
        (json!({"stop": 5}), 400, "stop", &["string"]),
        (json!({"stop": ["a", 5]}), 400, "stop[1]", &["string"]),
        (json!({"stop": ""}), 400, "stop", &["empty"]),
        (json!({"stop": vec!["a"; 17]}), 400, "stop", &["17"]),
        (json!({"stop_token_ids": [1, 259]}), 400, "stop_token_ids[1]", &["258"]),
        (json!({"n": 129}), 400, "n", &["between 1 and 128"]),
        (json!({"n": 0}), 400, "n", &["between 1 and 128"]),
        (json!({"logit_bias": {"5": 101}}), 400, "logit_bias.5", &["-100 to 100", "101"]),
        (json!({"logit_bias": {"259": 1}}), 400, "logit_bias.259", &["below 259"]),
        (json!({"dry_multiplier": -1}), 400, "dry_multiplier", &["0 to 100"]),
        (json!({"dry_sequence_breakers": [""]}), 400, "dry_sequence_breakers[0]", &["1 to 64"]),
        (json!({"top_n_sigma": -2}), 400, "top_n_sigma", &["at least 0"]),
        (json!({"return_token_ids": 1}), 400, "return_token_ids", &["boolean"]),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            400,
            "tools",
            &["no form of tool calls", "not supported yet"],
        ),
        (json!({"tool_choice": "required"}), 400, "tool_choice", &["none to call"]),
        (json!({"functions": [{}]}), 400, "functions", &["not supported yet"]),
        (json!({"modalities": ["audio"]}), 400, "modalities", &["not supported yet"]),
        (json!({"reasoning_effort": "high"}), 400, "reasoning_effort", &["not supported yet"]),
        (json!({"top_logprobs": 2}), 400, "top_logprobs", &["logprobs"]),
        (json!({"logprobs": true, "top_logprobs": 21}), 400, "top_logprobs", &["20", "21"]),
        (json!({"temprature": 1}), 400, "temprature", &["not a field"]),
        (json!({"model": "gpt-4"}), 404, "model", &["gpt-4", "echo"]),
        (json!({"model": 4}), 400, "model", &["string"]),
        (json!({"messages": null}), 400, "messages", &["required"]),
        (json!({"messages": []}), 400, "messages", &["empty"]),
        (json!({"messages": "Hi"}), 400, "messages", &["array", "string"]),
        (json!({"messages": ["Hi"]}), 400, "messages[0]", &["object"]),
        (json!({"messages": [{"content": "Hi"}]}), 400, "messages[0].role", &["required"]),
        (json!({"messages": [{"role": "king", "content": "Hi"}]}), 400, "messages[0].role", &["king"]),
        (
            json!({"messages": [{"role": "function", "content": "Hi"}]}),
            400,
            "messages[0].role",
            &["not supported yet"],
        ),
        (json!({"messages": [{"role": "user"}]}), 400, "messages[0].content", &["required"]),
        (json!({"messages": [{"role": "user", "content": 5}]}), 400, "messages[0].content", &["number 5"]),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            400,
            "messages[0].content[0]",
            &["image_url", "not supported yet"],
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            400,
            "messages[0].content[0].text",
            &["required"],
        ),
        (
            json!({"messages": [{"role": "user", "content": "Hi", "colour": 1}]}),
            400,
            "messages[0].colour",
            &[],
        ),
        (json!({"messages": [{"role": "user", "content": long}]}), 400, "messages", &["tokens", &context]),
    ];
    for (fields, status, param, words) in cases {
        let response = server.post(CHAT, &chat(fields.clone()));
        check(&fields.to_string(), &response, *status, Some(param), words);
        // The same before a stream begins.
        if fields.get("stream").is_none() && fields.get("stream_options").is_none() {
            let mut streamed = chat(fields.clone());
            streamed["stream"] = json!(true);
            check(&fields.to_string(), &server.post(CHAT, &streamed), *status, Some(param), words);
        }
    }
    // Both lengths are named: 512 bytes, and ChatML's 6 markers and line breaks around the roles "user" and
    // "assistant".
    let tokens = (CONTEXT + 1 + 4 + 1 + 1 + 1 + 1 + 9 + 1).to_string();
    let response = server.post(CHAT, &chat(json!({"messages": [{"role": "user", "content": long}]})));
    check("both lengths", &response, 400, Some("messages"), &[&tokens, &context]);

    for (fields, param, words) in [
        (json!({}), "prompt", &["required"][..]),
        (json!({"prompt": ""}), "prompt", &["no tokens"]),
        (json!({"prompt": []}), "prompt", &["no tokens"]),
        (json!({"prompt": 5}), "prompt", &["number 5"]),
        (json!({"prompt": [1, 259]}), "prompt[1]", &["258", "259"]),
        (json!({"prompt": [1, -1]}), "prompt[1]", &["-1"]),
        (json!({"prompt": [1, 1.5]}), "prompt[1]", &["integer"]),
        (json!({"prompt": ["a", ""]}), "prompt[1]", &["no tokens"]),
        (json!({"prompt": "a", "echo": 1}), "echo", &["boolean"]),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens", &["at least 0"]),
        (json!({"prompt": "a", "suffix": "b"}), "suffix", &["not supported yet"]),
        (json!({"prompt": "a", "best_of": 2}), "best_of", &["not supported yet"]),
        (json!({"prompt": "a", "logprobs": 6}), "logprobs", &["5"]),
        (json!({"prompt": "a", "messages": []}), "messages", &["not a field"]),
        (json!({"prompt": vec![1; CONTEXT]}), "prompt", &["512 tokens", &context]),
    ] {
        check(&fields.to_string(), &server.post(TEXT, &fields), 400, Some(param), words);
    }
    still_serves(&server);
    // Nothing that was refused is in the engine; the last answer's surplus step may still be.
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
    // Those that nobody reads are told, and counted.
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

//! The corpora of `runtime/text/tests/answers` through the server, whole and streamed.
//!
//! Planted, and caught: control tokens handed to the parser as text, or left out; one that is no tag shown as
//! text; rejected markup made content; an empty content for one that is null; a prompt that ends within the
//! reasoning not seen to.

use crate::deltas::{accumulate, without_ids};
use crate::process::Server;
use crate::scripted::talk::CONTROLS;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CHAT: &str = "/v1/chat/completions";

/// The tools of the corpora, as OpenAI has them.
fn given() -> Value {
    let tools = corpus("tools");
    let tool = |tool: &Value| json!({"type": "function", "function": {"name": tool["name"], "parameters": tool["parameters"]}});
    tools.as_array().expect("tools").iter().map(tool).collect()
}

fn corpus(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/answers");
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

/// The ids of a text: bytes, and control tokens where `controls`.
pub fn encode(text: &str, controls: bool) -> Vec<u32> {
    let (mut ids, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        match CONTROLS.iter().position(|name| controls && rest.starts_with(name)) {
            Some(at) => {
                ids.push(259 + at as u32);
                rest = &rest[CONTROLS[at].len()..];
            }
            None => {
                let (bytes, after) = rest.split_at(first.len_utf8());
                ids.extend(bytes.bytes().map(u32::from));
                rest = after;
            }
        }
    }
    ids
}

/// A request whose answer is these tokens.
fn asking(file: &Path, ids: &[u32], fields: &Value) -> Value {
    std::fs::write(file, json!(ids).to_string()).expect("written");
    let content = format!("[[ids {}]]", file.display());
    let mut body = json!({"messages": [{"role": "user", "content": content}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// The message that a corpus expects.
fn expected(parts: &Value) -> Value {
    let parts = parts.as_array().expect("parts");
    let all = |key: &str| -> String { parts.iter().filter_map(|part| part.get(key)?.as_str()).collect() };
    let calls: Vec<Value> = parts
        .iter()
        .filter(|part| part.get("call").is_some())
        .map(|part| {
            let function = json!({"name": part["call"], "arguments": part["arguments"]});
            json!({"id": null, "type": "function", "function": function})
        })
        .collect();
    let text = all("text");
    let mut message = json!({"role": "assistant", "content": text, "refusal": null});
    if text.is_empty() && !calls.is_empty() {
        message["content"] = Value::Null;
    }
    for (name, key) in [("reasoning_content", "reasoning"), ("rejected_markup", "rejected")] {
        if !all(key).is_empty() {
            message[name] = all(key).into();
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

pub fn answers() {
    let folder = tempfile::tempdir().expect("a directory");
    let file: PathBuf = folder.path().join("answer.json");
    let mut count = 0;
    for name in ["hermes", "qwen-xml", "mistral", "minimax", "gemma", "bare-json", "reasoning"] {
        let corpus = corpus(name);
        let format = |key: &str| corpus[key].as_str().unwrap_or("-").to_owned();
        let (tools, reasoning) = (format("tools"), format("reasoning"));
        let server = Server::start_talking(&tools, &reasoning, &["--hold-calls", "off"]);
        for case in corpus["cases"].as_array().expect("cases") {
            let answer = case["answer"].as_str().expect("an answer");
            let mut fields = json!({});
            if tools != "-" {
                fields["tools"] = given();
            }
            if case["opened"] == true {
                fields["reasoning_effort"] = json!("high");
            }
            let expect = expected(&case["expect"]);
            let told = format!("{name}: {}", case["name"]);
            for controls in [false, true] {
                let mut body = asking(&file, &encode(answer, controls), &fields);
                let response = server.post(CHAT, &body);
                assert_eq!(response.status, 200, "{told}: {}", response.text());
                let whole = &response.json()["choices"][0];
                let message = without_ids(&whole["message"]);
                let called = if message.get("tool_calls").is_some() { "tool_calls" } else { "stop" };
                assert_eq!(whole["finish_reason"], called, "{told}");
                if controls {
                    // What is written as a control token is markup or nothing.
                    assert_eq!(message.get("tool_calls"), expect.get("tool_calls"), "{told}");
                    for key in ["content", "reasoning_content"] {
                        let text = message[key].as_str().unwrap_or_default();
                        assert!(!CONTROLS.iter().any(|name| text.contains(name)), "{told}: {text}");
                    }
                } else {
                    assert_eq!(message, expect, "{told}");
                }
                body["stream"] = json!(true);
                let (mut streamed, reason) = accumulate(&server.post(CHAT, &body).events(), 0);
                if streamed["content"].is_null() && message["content"] == "" {
                    // Nothing was said at all.
                    streamed["content"] = json!("");
                }
                assert_eq!((without_ids(&streamed), &reason), (message, &whole["finish_reason"]), "{told}");
                count += 1;
            }
        }
    }
    assert!(count > 400, "{count} answers");
}

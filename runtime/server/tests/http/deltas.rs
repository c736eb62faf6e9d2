//! Messages as the deltas of a stream make them.

use serde_json::{Value, json};

/// A message as its deltas make it, in the shape that a whole one has; ids are not compared.
pub fn accumulate(events: &[Value], choice: usize) -> (Value, Value) {
    let mut message = json!({});
    let mut reason = Value::Null;
    for event in events {
        for part in event["choices"].as_array().expect("choices").iter().filter(|it| it["index"] == choice) {
            assert!(reason.is_null(), "more behind the end: {event}");
            reason = part["finish_reason"].clone();
            for (name, more) in part["delta"].as_object().expect("a delta") {
                match (&mut message[name.as_str()], more) {
                    (Value::String(text), Value::String(more)) => text.push_str(more),
                    (Value::Array(calls), Value::Array(deltas)) => {
                        deltas.iter().for_each(|it| call(calls, it))
                    }
                    (found, Value::Array(deltas)) => {
                        let mut calls = Vec::new();
                        deltas.iter().for_each(|it| call(&mut calls, it));
                        *found = calls.into();
                    }
                    (found, more) => *found = more.clone(),
                }
            }
        }
    }
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        call.as_object_mut().expect("a call").remove("index");
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().expect("a message").remove("tool_calls");
    }
    (message, reason)
}

fn call(calls: &mut Vec<Value>, delta: &Value) {
    let at = delta["index"].as_u64().expect("an index") as usize;
    if at == calls.len() {
        assert!(delta["id"].is_string() && delta["type"] == "function", "{delta}");
        calls.push(delta.clone());
        return;
    }
    assert!(at + 1 == calls.len() && delta.get("id").is_none(), "{delta}");
    let arguments = &mut calls[at]["function"]["arguments"];
    let more = delta["function"]["arguments"].as_str().expect("arguments");
    *arguments = json!(arguments.as_str().expect("arguments").to_owned() + more);
}

/// A message whose calls have ids, without these.
pub fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let id = call["id"].take();
        assert!(id.as_str().is_some_and(|id| !id.is_empty()), "{call}");
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().expect("a message").remove("tool_calls");
    }
    message
}

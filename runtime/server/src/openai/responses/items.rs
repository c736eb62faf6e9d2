//! Items of responses, converted to messages of chat templates.

use crate::error::{ApiError, wrong};
use crate::openai::messages::arguments_of;
use crate::openapi::schema::{any_of, array, of, text, words};
use crate::request::described::described;
use crate::request::fields::{Fields, missing, text_of, text_schema, wrong_type, wrong_word};
use crate::request::images::{self, RequestImage, RequestImages, read_response_image};
use crate::request::message::{append, append_image};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Largest `limit` of a list of items.
pub(crate) const MAX_LIMIT: usize = 100;
/// The `limit` of a list that names none.
pub(crate) const DEFAULT_LIMIT: usize = 20;
/// The parameters that a list's query may have.
pub(crate) const LIST_QUERY: [&str; 3] = ["limit", "order", "after"];

/// Types of text parts, and fields of earlier answers that clients send back with them.
pub(crate) const TEXTS: [&str; 4] = ["input_text", "output_text", "text", "reasoning_text"];
const OF_TEXTS: [&str; 2] = ["annotations", "logprobs"];
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The schemas of items and of their parts, by their names; of a model that takes images or does not.
pub(crate) fn schemas(takes_images: bool) -> Vec<(&'static str, Value)> {
    let samples = [
        json!({"type": "message", "role": "user", "content": ""}),
        json!({"type": "function_call", "call_id": "c", "name": "f"}),
        json!({"type": "function_call_output", "call_id": "c", "output": ""}),
        json!({"type": "reasoning"}),
    ];
    let read = |item: &Value| {
        let mut images = RequestImages::new(takes_images);
        read_item("", item, &mut HashMap::from([("c", "f")]), &mut Vec::new(), &mut images)
    };
    let image = images::samples().into_iter().skip(1).take(1);
    let mut schemas = vec![
        ("ResponseItem", described("", samples, read)),
        ("ResponsePart", text_schema(&TEXTS, &OF_TEXTS)),
    ];
    if takes_images {
        schemas.push(("ResponseImagePart", described("", image, |part| read_response_image("", part))));
    }
    schemas
}

/// The items as messages, and the images in them; consecutive ones of the assistant become one turn.
pub(super) fn messages_of(
    items: &[Value],
    takes_images: bool,
) -> Result<(Vec<Value>, Vec<RequestImage>), ApiError> {
    let (mut turns, mut called, mut images) = (Vec::new(), HashMap::new(), RequestImages::new(takes_images));
    for (at, item) in items.iter().enumerate() {
        read_item(&format!("input[{at}]"), item, &mut called, &mut turns, &mut images)?;
    }
    Ok((turns, images.into_vec()))
}

fn read_item<'a>(
    path: &str,
    item: &'a Value,
    called: &mut HashMap<&'a str, &'a str>,
    turns: &mut Vec<Value>,
    images: &mut RequestImages,
) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, item)?;
    // Fields of an earlier answer that clients send back.
    fields.harmless(&["id", "status", "phase"]);
    let kind = fields.tag("type")?;
    if !matches!(kind, None | Some("message")) {
        fields.holds("type");
    }
    match kind {
        None | Some("message") => {
            let at = fields.path("role");
            let role = match fields.of(|| words(&ROLES)).required_string("role")? {
                "developer" => "system",
                role @ ("system" | "user" | "assistant") => role,
                other => return Err(wrong_word(&at, &ROLES, Some(other))),
            };
            if role == "user" {
                let content = read_content(&mut fields, "content", images)?;
                turns.push(json!({"role": role, "content": content}));
            } else {
                let text = read_required_text(&mut fields, "content")?;
                match role {
                    "assistant" => append(turn(turns), "content", "", &text),
                    _ => turns.push(json!({"role": role, "content": text})),
                }
            }
        }
        Some("function_call") => {
            let id = fields.required_string("call_id")?;
            let name = fields.required_string("name")?;
            let arguments = arguments_of(fields.string("arguments")?.unwrap_or_default());
            called.insert(id, name);
            let call =
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            let turn = turn(turns);
            match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            }
        }
        Some("function_call_output") => {
            let at = fields.path("call_id");
            let id = fields.required_string("call_id")?;
            let Some(name) = called.get(id) else {
                return Err(wrong!(at, "is {id:?}, which is not the id of a call in an earlier item"));
            };
            let output = read_content(&mut fields, "output", images)?;
            turns.push(json!({"role": "tool", "content": output, "tool_call_id": id, "name": name}));
        }
        Some("reasoning") => {
            fields.harmless(&["summary", "encrypted_content"]);
            let text = read_text(&mut fields, "content")?.unwrap_or_default();
            if !text.is_empty() {
                append(turn(turns), "reasoning_content", "", &text);
            }
        }
        Some(other) => return Err(ApiError::unsupported(path, &format!("items of type {other:?}"))),
    }
    fields.finish()?;
    Ok(())
}

/// Instructions as messages. Most templates allow one system message, at the beginning: leading instructions
/// become that one, and later ones messages of the user, so that the prefix before them does not change.
pub(super) fn instructions_first(messages: Vec<Value>) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    for mut message in messages {
        if message["role"] == "system" {
            match turns.last_mut() {
                None => {}
                Some(first) if first["role"] == "system" => {
                    append(first, "content", "\n\n", message["content"].as_str().unwrap_or_default());
                    continue;
                }
                Some(_) => message["role"] = "user".into(),
            }
        }
        turns.push(message);
    }
    turns
}

/// The assistant's turn: the last one, or a new one.
fn turn(turns: &mut Vec<Value>) -> &mut Value {
    if turns.last().is_none_or(|turn| turn["role"] != "assistant") {
        turns.push(json!({"role": "assistant", "content": ""}));
    }
    let last = turns.len() - 1;
    &mut turns[last]
}

/// A string, or an array of parts with text.
fn read_text(fields: &mut Fields, name: &'static str) -> Result<Option<String>, ApiError> {
    let path = fields.path(name);
    match fields.of(|| any_of([text(), array(of("ResponsePart"))])).value(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let read = |(at, part)| text_of(&format!("{path}[{at}]"), part, &TEXTS, &OF_TEXTS, "parts");
            parts.iter().enumerate().map(read).collect::<Result<_, _>>().map(Some)
        }
        Some(other) => Err(wrong_type(&path, "a string or an array of parts", other)),
    }
}

/// The same, or parts with images among them, which go to `images`.
fn read_content(
    fields: &mut Fields,
    name: &'static str,
    images: &mut RequestImages,
) -> Result<Value, ApiError> {
    let path = fields.path(name);
    let parts = || match images.are_taken() {
        true => any_of([of("ResponsePart"), of("ResponseImagePart")]),
        false => of("ResponsePart"),
    };
    let content = fields.of(|| any_of([text(), array(parts())])).value(name);
    fields.holds(name);
    match content {
        None => Err(missing(&path)),
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(parts)) => {
            let mut said = json!({"content": ""});
            for (at, part) in parts.iter().enumerate() {
                let path = format!("{path}[{at}]");
                if part["type"] == "input_image" {
                    images.push(&path, part, read_response_image)?;
                    append_image(&mut said);
                } else {
                    append(&mut said, "content", "", text_of(&path, part, &TEXTS, &OF_TEXTS, "parts")?);
                }
            }
            Ok(said["content"].take())
        }
        Some(other) => Err(wrong_type(&path, "a string or an array of parts", other)),
    }
}

fn read_required_text(fields: &mut Fields, name: &'static str) -> Result<String, ApiError> {
    let text = read_text(fields, name)?;
    fields.holds(name);
    text.ok_or_else(|| missing(&fields.path(name)))
}

#[cfg(test)]
mod tests {
    use super::instructions_first;
    use serde_json::{Value, json};

    #[test]
    fn instructions_are_one_message_before_all_else() {
        let said = |messages: &[(&str, &str)]| -> Vec<Value> {
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
        };
        let found =
            instructions_first(said(&[("system", "a"), ("system", "b"), ("user", "c"), ("system", "d")]));
        assert_eq!(found, said(&[("system", "a\n\nb"), ("user", "c"), ("user", "d")]));
        let nothing_to_do = said(&[("user", "c"), ("assistant", "d"), ("user", "e")]);
        assert_eq!(instructions_first(nothing_to_do.clone()), nothing_to_do);
    }
}

//! Anthropic's messages, converted to those that chat templates take.

use super::document::{self, read_document};
use super::texts::{self, BETWEEN, read_text, texts_of};
use super::thinking::held_by;
use super::tools::{REFERENCE, read_reference, reference_schema};
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_object, any_of, array, of, some, text};
use crate::request::described::described;
use crate::request::fields::{Fields, wrong_type, wrong_word};
use crate::request::images::{self, RequestImage, RequestImages, read_block_image};
use crate::request::message::{append, append_image};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The tool's name by the call's id, of the messages before.
type Called<'a> = HashMap<&'a str, &'a str>;

/// The instructions, as the first message.
pub(super) fn read_system(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let text = match fields.of(|| any_of([text(), array(of("AnthropicText"))])).value("system") {
        None => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => texts_of("system", blocks)?,
        Some(other) => return Err(wrong_type("system", "a string or an array of blocks", other)),
    };
    Ok((!text.is_empty()).then(|| json!({"role": "system", "content": text})))
}

/// The messages, and the images in them; consecutive ones of one speaker become one turn.
pub(super) fn read_messages(
    fields: &mut Fields,
    takes_images: bool,
) -> Result<(Vec<Value>, Vec<RequestImage>), ApiError> {
    fields.about("The last one is the user's, or begins the answer.").of(|| some(of("AnthropicMessage")));
    let messages = match fields.required("messages")? {
        Value::Array(messages) if messages.is_empty() => {
            return Err(ApiError::field("messages", "`messages` must not be empty"));
        }
        Value::Array(messages) => messages,
        other => return Err(wrong_type("messages", "an array", other)),
    };
    let (mut turns, mut called, mut images) = (Vec::new(), Called::new(), RequestImages::new(takes_images));
    for (at, message) in messages.iter().enumerate() {
        read_message(at, message, &mut called, &mut turns, &mut images)?;
    }
    if let Some(last) = turns.last().filter(|turn| turn["role"] == "assistant") {
        check_beginning(last, &format!("messages[{}]", messages.len() - 1))?;
    }
    Ok((turns, images.into_vec()))
}

/// Checks the assistant's last message, which the answer goes on with.
fn check_beginning(turn: &Value, path: &str) -> Result<(), ApiError> {
    if turn.get("tool_calls").is_some() {
        return Err(wrong!(path, "calls tools, and their results are missing behind it"));
    }
    let content = turn["content"].as_str().unwrap_or_default();
    if content.is_empty() {
        return Err(wrong!(path, "has no text that the answer could go on with"));
    }
    if content.ends_with(char::is_whitespace) {
        return Err(wrong!(path, "must not end with whitespace: the answer goes on with it"));
    }
    Ok(())
}

/// The schemas of messages, and of their texts, documents and images, by their names; of a model that takes
/// images or does not.
pub(crate) fn schemas(takes_images: bool) -> Vec<(&'static str, Value)> {
    let samples = ["user", "system", "assistant"].map(|role| json!({"role": role, "content": ""}));
    let read = |message: &Value| {
        let mut images = RequestImages::new(takes_images);
        read_message(0, message, &mut Called::new(), &mut Vec::new(), &mut images)
    };
    let image = images::samples().into_iter().skip(2);
    let mut schemas = vec![
        ("AnthropicMessage", described("messages[]", samples, read)),
        ("AnthropicText", texts::schema()),
        ("AnthropicDocument", described("", document::samples(), |block| read_document("", block))),
        ("AnthropicToolReference", reference_schema()),
    ];
    if takes_images {
        schemas.push(("AnthropicImage", described("", image, |block| read_block_image("", block))));
    }
    schemas
}

/// Text, or blocks of text, documents and references to tools, and of images where they are taken.
fn result(images: bool) -> Value {
    let blocks = ["AnthropicText", "AnthropicDocument", "AnthropicToolReference"].map(of).into_iter();
    let blocks = blocks.chain(images.then(|| of("AnthropicImage")));
    any_of([text(), array(any_of(blocks.collect::<Vec<_>>()))])
}

/// The parts of a message, of a model that takes images or does not.
fn content(assistant: bool, takes_images: bool) -> Value {
    let blocks = if assistant {
        let called = json!({"type": "tool_use", "id": "c", "name": "f"});
        let samples = [called, json!({"type": "thinking", "thinking": ""})];
        described("", samples, |block| read_block("", block, &mut Called::new(), &mut Vec::new()))
    } else {
        let called = Called::from([("c", "f")]);
        let sample = json!({"type": "tool_result", "tool_use_id": "c"});
        described("", [sample], |block| {
            let mut images = RequestImages::new(takes_images);
            read_block_of_user("", block, &called, &mut Vec::new(), &mut images)
        })
    };
    let image = (takes_images && !assistant).then(|| of("AnthropicImage"));
    let document = (!assistant).then(|| of("AnthropicDocument"));
    let blocks = [of("AnthropicText")].into_iter().chain(document).chain(image).chain([blocks]);
    any_of([text(), array(any_of(blocks.collect::<Vec<_>>()))])
}

fn read_message<'a>(
    at: usize,
    message: &'a Value,
    called: &mut Called<'a>,
    turns: &mut Vec<Value>,
    images: &mut RequestImages,
) -> Result<(), ApiError> {
    let mut fields = Fields::new(&format!("messages[{at}]"), message)?;
    let path = fields.path("role");
    let role = fields.tag("role")?;
    fields.holds("role");
    let assistant = match role {
        // Templates take a system message only at the beginning: later ones become the user's.
        Some("user" | "system") => false,
        Some("assistant") => true,
        other => return Err(wrong_word(&path, &["user", "assistant", "system"], other)),
    };
    let path = fields.path("content");
    let content = fields.of(|| content(assistant, images.are_taken())).required("content")?;
    fields.finish()?;
    match content {
        Value::String(text) => add(turns, assistant, text),
        Value::Array(blocks) => {
            for (at, block) in blocks.iter().enumerate() {
                let path = format!("{path}[{at}]");
                if assistant {
                    read_block(&path, block, called, turns)?;
                } else {
                    read_block_of_user(&path, block, called, turns, images)?;
                }
            }
        }
        other => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    }
    Ok(())
}

/// Adds text to the speaker's turn.
fn add(turns: &mut Vec<Value>, assistant: bool, text: &str) {
    append(turn(turns, assistant), "content", BETWEEN, text);
}

/// The speaker's turn: the last one, or a new one.
fn turn(turns: &mut Vec<Value>, assistant: bool) -> &mut Value {
    let role = if assistant { "assistant" } else { "user" };
    if turns.last().is_none_or(|turn| turn["role"] != role) {
        turns.push(json!({"role": role, "content": ""}));
    }
    let last = turns.len() - 1;
    &mut turns[last]
}

fn read_block_of_user(
    path: &str,
    block: &Value,
    called: &Called,
    turns: &mut Vec<Value>,
    images: &mut RequestImages,
) -> Result<(), ApiError> {
    if block["type"] == "image" {
        images.push(path, block, read_block_image)?;
        append_image(turn(turns, false));
        return Ok(());
    }
    if block["type"] == "document" {
        add(turns, false, &read_document(path, block)?);
        return Ok(());
    }
    if block["type"] != "tool_result" {
        add(turns, false, read_text(path, block)?);
        return Ok(());
    }
    let mut fields = Fields::new(path, block)?;
    fields.required_tag("type")?;
    fields.harmless(&["cache_control"]);
    let at = fields.path("tool_use_id");
    let id = fields.required_string("tool_use_id")?;
    let Some(name) = called.get(id) else {
        return Err(wrong!(at, "is {id:?}, which is not the id of an earlier `tool_use`"));
    };
    let at = fields.path("content");
    let given = fields.of(|| result(images.are_taken())).value("content");
    // Templates have no other place for an error flag.
    let failed = fields.boolean("is_error")?.unwrap_or(false);
    let mut said = json!({"content": if failed { "Error: " } else { "" }});
    let mut between = "";
    match given {
        None => {}
        Some(Value::String(text)) => append(&mut said, "content", "", text),
        Some(Value::Array(blocks)) => {
            for (index, block) in blocks.iter().enumerate() {
                let path = format!("{at}[{index}]");
                if block["type"] == "image" {
                    images.push(&path, block, read_block_image)?;
                    append_image(&mut said);
                } else if block["type"] == "document" {
                    append(&mut said, "content", between, &read_document(&path, block)?);
                } else if block["type"] == REFERENCE {
                    append(&mut said, "content", between, read_reference(&path, block)?);
                } else {
                    append(&mut said, "content", between, read_text(&path, block)?);
                }
                between = BETWEEN;
            }
        }
        Some(other) => return Err(wrong_type(&at, "a string or an array of blocks", other)),
    }
    fields.finish()?;
    turns.push(json!({"role": "tool", "content": said["content"], "tool_call_id": id, "name": name}));
    Ok(())
}

fn read_block<'a>(
    path: &str,
    block: &'a Value,
    called: &mut Called<'a>,
    turns: &mut Vec<Value>,
) -> Result<(), ApiError> {
    match block["type"].as_str() {
        Some("tool_use") => {
            let mut fields = Fields::new(path, block)?;
            fields.required_tag("type")?;
            fields.harmless(&["cache_control", "caller"]);
            let id = fields.required_string("id")?;
            let name = fields.required_string("name")?;
            let input = fields.of(any_object).object("input")?.cloned().unwrap_or_default();
            fields.finish()?;
            called.insert(id, name);
            let turn = turn(turns, true);
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}});
            match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            }
        }
        Some("thinking") => {
            let mut fields = Fields::new(path, block)?;
            fields.required_tag("type")?;
            fields.harmless(&["cache_control"]);
            let text = fields.required_string("thinking")?;
            // The signature does not prove who wrote the reasoning.
            let signature = fields.string("signature")?.unwrap_or_default();
            let held = held_by(signature).map_err(|what| ApiError::at(fields.path("signature"), what))?;
            fields.finish()?;
            let text = held.filter(|_| text.is_empty()).unwrap_or_else(|| text.to_owned());
            append(turn(turns, true), "reasoning_content", "", &text);
        }
        _ => add(turns, true, read_text(path, block)?),
    }
    Ok(())
}

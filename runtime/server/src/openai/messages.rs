//! OpenAI's chat messages, converted to those that chat templates take.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_of, array, of, only, some, text};
use crate::request::described::described;
use crate::request::fields::{Fields, Neutral, missing, text_of, text_schema, wrong_type, wrong_word};
use crate::request::images::{self, RequestImage, RequestImages, read_chat_image};
use crate::request::message::{append, append_image};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The messages as a chat template takes them: content is a string, or a list of parts where it has images,
/// and the arguments of calls are objects; and the images.
pub(super) fn read_messages(
    fields: &mut Fields,
    takes_images: bool,
) -> Result<(Vec<Value>, Vec<RequestImage>), ApiError> {
    match fields.of(|| some(of("ChatMessage"))).required("messages")? {
        Value::Array(messages) if messages.is_empty() => {
            Err(ApiError::field("messages", "`messages` must not be empty"))
        }
        Value::Array(messages) => {
            let (mut calls, mut images) = (HashMap::new(), RequestImages::new(takes_images));
            let read = |(at, message)| read_message(at, message, &mut calls, &mut images);
            let messages = messages.iter().enumerate().map(read).collect::<Result<_, _>>()?;
            Ok((messages, images.into_vec()))
        }
        other => Err(wrong_type("messages", "an array", other)),
    }
}

/// The schemas of messages and of what they are made of, by their names; of a model that takes images or does
/// not.
pub(crate) fn schemas(takes_images: bool) -> Vec<(&'static str, Value)> {
    let said = |role: &&str| json!({"role": role, "content": ""});
    let mut samples: Vec<Value> = ["system", "developer", "user", "assistant"].iter().map(said).collect();
    samples.push(json!({"role": "assistant", "tool_calls": [call_sample()]}));
    samples.push(json!({"role": "tool", "content": "", "tool_call_id": "c"}));
    let read = |message: &Value| {
        let mut images = RequestImages::new(takes_images);
        read_message(0, message, &mut HashMap::from([("c", "f")]), &mut images).map(drop)
    };
    let image = images::samples().into_iter().take(1);
    let mut schemas = vec![
        ("ChatMessage", described("messages[]", samples, read)),
        ("ChatTextPart", text_schema(&["text"], &[])),
        (
            "ChatCall",
            described("", [call_sample()], |call| read_call("", call, &mut HashMap::new()).map(drop)),
        ),
    ];
    if takes_images {
        schemas.push(("ChatImagePart", described("", image, |part| read_chat_image("", part))));
    }
    schemas
}

fn call_sample() -> Value {
    json!({"id": "c", "function": {"name": "f"}})
}

/// `calls` are those of the messages before: the tool's name by the call's id.
fn read_message<'a>(
    at: usize,
    message: &'a Value,
    calls: &mut HashMap<&'a str, &'a str>,
    images: &mut RequestImages,
) -> Result<Value, ApiError> {
    let mut fields = Fields::new(&format!("messages[{at}]"), message)?;
    let path = fields.path("role");
    let role = match fields.required_tag("role")? {
        // `developer` is the newer name of `system`; templates do not know it.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        "function" => return Err(ApiError::unsupported(path, "function messages; use the role `tool`")),
        other => {
            let roles = ["system", "developer", "user", "assistant", "tool"];
            return Err(wrong_word(&path, &roles, Some(other)));
        }
    };
    let called = if role == "assistant" { read_calls(&mut fields, calls)? } else { Vec::new() };
    let mut read = Map::from_iter([("role".to_owned(), role.into())]);
    let shows = matches!(role, "user" | "tool").then_some(images);
    read.insert("content".to_owned(), read_content(&mut fields, !called.is_empty(), shows)?);
    if !called.is_empty() {
        read.insert("tool_calls".to_owned(), called.into());
    }
    if role == "assistant"
        && let Some(reasoning) = fields.string("reasoning_content")?
    {
        read.insert("reasoning_content".to_owned(), reasoning.into());
    }
    if role == "tool" {
        let path = fields.path("tool_call_id");
        let id = fields.required_string("tool_call_id")?;
        let Some(name) = calls.get(id) else {
            return Err(wrong!(path, "is {id:?}, which is not the id of a call in an earlier message"));
        };
        read.insert("tool_call_id".to_owned(), id.into());
        // Some templates want the tool's name, which OpenAI's clients do not send.
        read.insert("name".to_owned(), (*name).into());
    }
    fields.refuse_unless("function_call", &Neutral::Nothing, "function calls; use `tool_calls`")?;
    fields.refuse_unless("audio", &Neutral::Nothing, "audio")?;
    fields.refuse_unless("refusal", &Neutral::Nothing, "a refusal in the history")?;
    // Fields of an earlier answer that clients send back.
    fields.harmless(&["annotations", "rejected_markup"]);
    if role != "assistant" {
        fields.refuse_unless(
            "tool_calls",
            &Neutral::Empty,
            "calls in messages of other roles than `assistant`",
        )?;
    }
    if let Some(name) = fields.string("name")? {
        read.insert("name".to_owned(), name.into());
    }
    fields.finish()?;
    Ok(Value::Object(read))
}

/// A message's content as one string, or as parts where it has images, which go to `images`; `None` of roles
/// that show none. It may be absent where there are calls.
fn read_content(
    fields: &mut Fields,
    calls: bool,
    mut images: Option<&mut RequestImages>,
) -> Result<Value, ApiError> {
    let path = fields.path("content");
    let shows = images.as_ref().is_some_and(|images| images.are_taken());
    let parts = || match shows {
        true => any_of([of("ChatTextPart"), of("ChatImagePart")]),
        false => of("ChatTextPart"),
    };
    let content = fields.of(|| any_of([text(), array(parts())])).value("content");
    fields.holds(if calls { "tool_calls" } else { "content" });
    match content {
        None if calls => Ok("".into()),
        None => Err(missing(&path)),
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(parts)) => {
            let mut said = json!({"content": ""});
            for (at, part) in parts.iter().enumerate() {
                let path = format!("{path}[{at}]");
                match &mut images {
                    Some(images) if part["type"] == "image_url" => {
                        images.push(&path, part, read_chat_image)?;
                        append_image(&mut said);
                    }
                    _ => append(&mut said, "content", "", text_of(&path, part, &["text"], &[], "parts")?),
                }
            }
            Ok(said["content"].take())
        }
        Some(other) => Err(wrong_type(&path, "a string or an array of parts", other)),
    }
}

/// The calls of an assistant's message.
fn read_calls<'a>(
    fields: &mut Fields<'a>,
    calls: &mut HashMap<&'a str, &'a str>,
) -> Result<Vec<Value>, ApiError> {
    let path = fields.path("tool_calls");
    let least = if fields.given("tool_calls").is_some() { some } else { array };
    let called = fields.of(|| least(of("ChatCall"))).array("tool_calls")?.unwrap_or_default();
    let read = |(at, call)| read_call(&format!("{path}[{at}]"), call, calls);
    called.iter().enumerate().map(read).collect()
}

fn read_call<'a>(
    path: &str,
    call: &'a Value,
    calls: &mut HashMap<&'a str, &'a str>,
) -> Result<Value, ApiError> {
    let mut fields = Fields::new(path, call)?;
    let id = fields.required_string("id")?;
    if let Some(kind) = fields.of(|| only("function")).string("type")?.filter(|kind| *kind != "function") {
        let what = format!("calls of type {kind:?}");
        return Err(ApiError::unsupported(fields.path("type"), &what));
    }
    // `index` is a field of streamed calls that some clients send back.
    fields.harmless(&["index"]);
    let at = fields.path("function");
    let function = fields.required("function")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, function)?;
    let name = fields.required_string("name")?;
    let arguments = fields.string("arguments")?.unwrap_or_default();
    fields.finish()?;
    calls.insert(id, name);
    let function = json!({"name": name, "arguments": arguments_of(arguments)});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// Arguments as an object. Other text, as of a call that was cut off, is kept: the template may handle it.
pub(crate) fn arguments_of(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(arguments @ Value::Object(_)) => arguments,
        _ if text.trim().is_empty() => json!({}),
        _ => text.into(),
    }
}

//! Tools, of which some are loaded only when a result refers to them.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_object, array, of, only};
use crate::request::conversation::Tools;
use crate::request::described::described;
use crate::request::fields::{Fields, wrong_word};
use crate::request::tools::{read_given, tool_name, tool_of};
use serde_json::{Value, json};

/// The type of a block of a result that loads a tool.
pub(super) const REFERENCE: &str = "tool_reference";

/// Reads `tools` and `tool_choice`.
pub(super) fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    fields.of(|| array(of("AnthropicTool")));
    let mut tools = read_given(fields, read_tool, "name", "input_schema")?;
    load(fields, &mut tools)?;
    let Some(choice) = fields.value("tool_choice") else { return Ok(tools) };
    let mut choice = Fields::new("tool_choice", choice)?;
    let kind = choice.tag("type")?;
    choice.holds("type");
    match kind {
        Some("auto") => {}
        Some("none") => tools.forbidden = true,
        Some("any") => tools.require("tool_choice.type")?,
        Some("tool") => {
            let name = choice.of(tool_name).required_string("name")?.to_owned();
            tools.allow(vec![name], "tool_choice.name")?;
            tools.require("tool_choice.type")?;
        }
        other => return Err(wrong_word("tool_choice.type", &["auto", "any", "tool", "none"], other)),
    }
    tools.one = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    choice.finish()?;
    Ok(tools)
}

/// Leaves out the tools with `defer_loading` that no result refers to: the model is not shown them and cannot
/// call them.
fn load(fields: &mut Fields, tools: &mut Tools) -> Result<(), ApiError> {
    let loaded = references(fields.given("messages").unwrap_or(&Value::Null));
    let called = |tool: &Value, name: &str| tool["function"]["name"] == name;
    for (path, name) in &loaded {
        if !tools.given.iter().any(|tool| called(tool, name)) {
            return Err(wrong!(path.as_str(), "names {name:?}, which is not among `tools`"));
        }
    }
    let asked = all(fields.given("tools").unwrap_or(&Value::Null));
    let is_there = |(tool, asked): (&Value, &Value)| {
        asked["defer_loading"] != true || loaded.iter().any(|(_, name)| called(tool, name))
    };
    let there: Vec<bool> = tools.given.iter().zip(asked).map(is_there).collect();
    tools.keep(&there);
    Ok(())
}

fn all(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The tools that results refer to, and where.
fn references(messages: &Value) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    for (at, message) in all(messages).iter().enumerate() {
        for (block_at, block) in all(&message["content"]).iter().enumerate() {
            for (part_at, part) in all(&block["content"]).iter().enumerate() {
                if block["type"] == "tool_result" && part["type"] == REFERENCE {
                    let path = format!("messages[{at}].content[{block_at}].content[{part_at}].tool_name");
                    found.extend(part["tool_name"].as_str().map(|name| (path, name)));
                }
            }
        }
    }
    found
}

/// Reads a block that refers to a tool: its name is all that the model sees of it there.
pub(super) fn read_reference<'a>(path: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    let mut fields = Fields::new(path, block)?;
    fields.required_tag("type")?;
    fields.harmless(&["cache_control"]);
    let name = fields.of(tool_name).required_string("tool_name")?;
    fields.finish()?;
    Ok(name)
}

/// JSON schema of such a block.
pub(super) fn reference_schema() -> Value {
    described("", [json!({"type": REFERENCE, "tool_name": "f"})], |block| read_reference("", block).map(drop))
}

/// JSON schema of an entry of `tools`.
pub(crate) fn tool_schema() -> Value {
    described("", [json!({"name": "f"})], |tool| read_tool("", tool))
}

fn read_tool(path: &str, tool: &Value) -> Result<(Value, bool), ApiError> {
    let mut fields = Fields::new(path, tool)?;
    if let Some(kind) = fields.of(|| only("custom")).string("type")?.filter(|kind| *kind != "custom") {
        let what = format!("tools of type {kind:?}");
        return Err(ApiError::unsupported(fields.path("type"), &what));
    }
    let name_at = fields.path("name");
    let name = fields.of(tool_name).required_string("name")?;
    let description = fields.string("description")?;
    let schema = fields.about("A JSON schema.").of(any_object).value("input_schema");
    let schema_at = fields.path("input_schema");
    let strict = fields.boolean("strict")?.unwrap_or(false);
    // See `load`.
    fields.boolean("defer_loading")?;
    // Arguments are streamed as they form.
    fields.harmless(&["cache_control", "eager_input_streaming"]);
    fields.finish()?;
    Ok((tool_of(name, &name_at, description, schema, &schema_at)?, strict))
}

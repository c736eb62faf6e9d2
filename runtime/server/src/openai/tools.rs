//! The tools of a request, and which of them may be called.

use super::fields::{Fields, wrong_type};
use crate::conversation::Tools;
use crate::http::error::ApiError;
use serde_json::{Map, Value, json};

/// Longest name of a tool, in bytes: what the readers of answers take.
pub(crate) const LONGEST_NAME: usize = 256;
/// Most tools of a request.
pub(crate) const MOST: usize = 1024;

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    if let Some(Value::Array(tools)) = fields.value("tools")
        && tools.len() > MOST
    {
        let message = format!("`tools` has {} of them; at most {MOST}", tools.len());
        return Err(ApiError::field("tools", message));
    }
    let given = read_given(fields, read_tool, "function.name")?;
    let forbidden = read_choice(fields)?;
    let one = !fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(Tools { given, forbidden, one })
}

/// Reads `tools`, each as `read` does; their names stand at `name` and differ.
pub(crate) fn read_given(
    fields: &mut Fields,
    read: impl Fn(&str, &Value) -> Result<Value, ApiError>,
    name: &str,
) -> Result<Vec<Value>, ApiError> {
    let given: Vec<Value> = match fields.value("tools") {
        None => Vec::new(),
        Some(Value::Array(tools)) => {
            let read = |(at, tool)| read(&format!("tools[{at}]"), tool);
            tools.iter().enumerate().map(read).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong_type("tools", "an array", other)),
    };
    check_names("tools", name, &given)?;
    Ok(given)
}

/// Reads `tool_choice`: whether calls are forbidden.
pub(super) fn read_choice(fields: &mut Fields) -> Result<bool, ApiError> {
    Ok(match fields.value("tool_choice") {
        None => false,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => false,
            "none" => true,
            "required" => return Err(ApiError::unsupported("tool_choice", "requiring a call is")),
            other => {
                let message =
                    format!("`tool_choice` must be none, auto, required or a tool, and is {other:?}");
                return Err(ApiError::field("tool_choice", message));
            }
        },
        Some(Value::Object(_)) => return Err(ApiError::unsupported("tool_choice", "naming tools is")),
        Some(other) => return Err(wrong_type("tool_choice", "a string or an object", other)),
    })
}

fn read_tool(path: &str, tool: &Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(path, tool)?;
    let kind = fields.path("type");
    match fields.required_string("type")? {
        "function" => {}
        other => return Err(ApiError::unsupported(kind, &format!("tools of type {other:?} are"))),
    }
    let at = fields.path("function");
    let function = fields.required("function")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, function)?;
    let name = fields.path("name");
    let named = fields.required_string("name")?;
    let description = fields.string("description")?;
    let parameters = fields.value("parameters");
    let at = fields.path("parameters");
    fields.refuse_unless("strict", |strict| strict == false, "arguments held to their schema are")?;
    fields.finish()?;
    tool_of(named, &name, description, parameters, &at)
}

/// A tool as templates take it; `name_at` and `schema_at` are the paths of its name and of the schema of its parameters.
pub(crate) fn tool_of(
    name: &str,
    name_at: &str,
    description: Option<&str>,
    schema: Option<&Value>,
    schema_at: &str,
) -> Result<Value, ApiError> {
    let fit = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(fit) {
        let message = format!(
            "`{name_at}` must be of 1 to {LONGEST_NAME} letters, digits, and `_`, `-`, `.`, `:`, `/`; it is {name:?}"
        );
        return Err(ApiError::field(name_at, message));
    }
    let mut function = Map::from_iter([("name".to_owned(), name.into())]);
    if let Some(description) = description {
        function.insert("description".to_owned(), description.into());
    }
    let schema = match schema {
        None => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(other) => return Err(wrong_type(schema_at, "an object", other)),
    };
    function.insert("parameters".to_owned(), schema);
    Ok(json!({"type": "function", "function": function}))
}

/// Refuses two tools of one name; `field` is where a tool of `list` has it.
pub(crate) fn check_names(list: &str, field: &str, tools: &[Value]) -> Result<(), ApiError> {
    let name = |tool: &Value| tool["function"]["name"].clone();
    for (at, tool) in tools.iter().enumerate() {
        if tools[..at].iter().any(|other| name(other) == name(tool)) {
            let message = format!("`{list}[{at}].{field}` is {}, and another tool has that name", name(tool));
            return Err(ApiError::field(format!("{list}[{at}].{field}"), message));
        }
    }
    Ok(())
}

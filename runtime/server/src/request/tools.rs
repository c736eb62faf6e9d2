//! The tools of a request, and which of them may be called.

use super::described::described;
use super::fields::{Fields, wrong_type, wrong_word};
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_object, any_of, at_most, of, some, words};
use crate::request::conversation::Tools;
use serde_json::{Map, Value, json};

/// Longest name of a tool, in bytes: what the readers of answers take.
pub(crate) const LONGEST_NAME: usize = 256;
/// Most tools of a request.
pub(crate) const MOST: usize = 1024;

/// Where an API has what is said of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionPlace {
    /// In the member `function`.
    Within,
    /// Beside the type.
    Beside,
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn read_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    if let Some(Value::Array(tools)) = fields.of(|| at_most(MOST, of("ChatTool"))).value("tools")
        && tools.len() > MOST
    {
        return Err(wrong!("tools", "has {} of them; at most {MOST}", tools.len()));
    }
    let mut tools = read_given(fields, read_tool, "function.name", "function.parameters")?;
    read_choice(fields, &mut tools, FunctionPlace::Within)?;
    tools.one = !fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Ok(tools)
}

/// Reads `tools`, each as `read` does, which also says whether it is strict; their names stand at `name` and
/// differ.
pub(crate) fn read_given(
    fields: &mut Fields,
    read: impl Fn(&str, &Value) -> Result<(Value, bool), ApiError>,
    name: &str,
    schema_at: &'static str,
) -> Result<Tools, ApiError> {
    let read = |(at, tool)| read(&format!("tools[{at}]"), tool);
    let tools = fields.array("tools")?.unwrap_or_default();
    let (given, strict) = tools.iter().enumerate().map(read).collect::<Result<(Vec<_>, Vec<_>), _>>()?;
    check_names("tools", name, &given)?;
    Ok(Tools { given, strict, schema_at, ..Tools::default() })
}

/// Reads `tool_choice`.
pub(crate) fn read_choice(
    fields: &mut Fields,
    tools: &mut Tools,
    place: FunctionPlace,
) -> Result<(), ApiError> {
    const CHOICE: &str = "tool_choice";
    fields.of(|| any_of([words(&["none", "auto", "required"]), name_schema(place), allowed_schema(place)]));
    let choice = match fields.value(CHOICE) {
        None => return Ok(()),
        Some(Value::String(choice)) => {
            match choice.as_str() {
                "auto" => {}
                "none" => tools.forbidden = true,
                "required" => tools.require(CHOICE)?,
                other => {
                    let message =
                        format!("`tool_choice` must be none, auto, required or a tool, and is {other:?}");
                    return Err(ApiError::field(CHOICE, message));
                }
            }
            return Ok(());
        }
        Some(choice @ Value::Object(_)) => choice,
        Some(other) => return Err(wrong_type(CHOICE, "a string or an object", other)),
    };
    match choice["type"].as_str() {
        Some("function") => {
            let (name, path) = read_name(CHOICE, choice, place)?;
            tools.allow(vec![name], &path)?;
            tools.require(CHOICE)
        }
        Some("allowed_tools") => read_allowed(CHOICE, choice, tools, place),
        kind => Err(wrong_word("tool_choice.type", &["function", "allowed_tools"], kind)),
    }
}

fn named(place: FunctionPlace) -> Value {
    match place {
        FunctionPlace::Within => json!({"type": "function", "function": {"name": "f"}}),
        FunctionPlace::Beside => json!({"type": "function", "name": "f"}),
    }
}

fn name_schema(place: FunctionPlace) -> Value {
    described("", [named(place)], |choice| read_name("", choice, place))
}

fn allowed_schema(place: FunctionPlace) -> Value {
    let mut allowed = json!({"mode": "auto", "tools": [named(place)]});
    match place {
        FunctionPlace::Within => allowed = json!({"type": "allowed_tools", "allowed_tools": allowed}),
        FunctionPlace::Beside => allowed["type"] = "allowed_tools".into(),
    }
    let given = vec![json!({"function": {"name": "f"}})];
    described("", [allowed], |choice| {
        read_allowed("", choice, &mut Tools { given: given.clone(), ..Tools::default() }, place)
    })
}

/// Some of the tools, and whether one of them has to be called.
fn read_allowed(path: &str, choice: &Value, tools: &mut Tools, place: FunctionPlace) -> Result<(), ApiError> {
    let mut fields = Fields::new(path, choice)?;
    fields.required_tag("type")?;
    let inner = fields.path("allowed_tools");
    if place == FunctionPlace::Within {
        let within = fields.required("allowed_tools")?;
        fields.finish()?;
        fields = Fields::new(&inner, within)?;
    }
    let mode = fields.path("mode");
    match fields.of(|| words(&["auto", "required"])).required_string("mode")? {
        "auto" => {}
        "required" => tools.require(&mode)?,
        other => return Err(wrong_word(&mode, &["auto", "required"], Some(other))),
    }
    let path = fields.path("tools");
    let allowed = match fields.of(|| some(name_schema(place))).required("tools")? {
        Value::Array(allowed) => allowed,
        other => return Err(wrong_type(&path, "an array of tools", other)),
    };
    fields.finish()?;
    let name = |(at, tool)| read_name(&format!("{path}[{at}]"), tool, place).map(|(name, _)| name);
    let names = allowed.iter().enumerate().map(name).collect::<Result<Vec<_>, _>>()?;
    tools.allow(names, &path)
}

/// The name of a function, and its path.
fn read_name(path: &str, value: &Value, place: FunctionPlace) -> Result<(String, String), ApiError> {
    let mut fields = Fields::new(path, value)?;
    let kind = fields.path("type");
    match fields.required_tag("type")? {
        "function" => {}
        other => return Err(ApiError::unsupported(kind, &format!("tools of type {other:?}"))),
    }
    let inner = fields.path("function");
    if place == FunctionPlace::Within {
        let within = fields.required("function")?;
        fields.finish()?;
        fields = Fields::new(&inner, within)?;
    }
    let (name, path) = (fields.of(tool_name).required_string("name")?.to_owned(), fields.path("name"));
    fields.finish()?;
    Ok((name, path))
}

/// The schema of a tool's name.
pub(crate) fn tool_name() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": LONGEST_NAME, "pattern": "^[\\w.:/-]+$"})
}

/// The schema of one of OpenAI's tools.
pub(crate) fn tool_schema() -> Value {
    described("", [named(FunctionPlace::Within)], |tool| read_tool("", tool))
}

fn read_tool(path: &str, tool: &Value) -> Result<(Value, bool), ApiError> {
    let mut fields = Fields::new(path, tool)?;
    let kind = fields.path("type");
    match fields.required_tag("type")? {
        "function" => {}
        other => return Err(ApiError::unsupported(kind, &format!("tools of type {other:?}"))),
    }
    let at = fields.path("function");
    let function = fields.required("function")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, function)?;
    let name = fields.path("name");
    let named = fields.of(tool_name).required_string("name")?;
    let description = fields.string("description")?;
    let parameters = fields.about("A JSON schema.").of(any_object).value("parameters");
    let at = fields.path("parameters");
    let strict = fields.boolean("strict")?.unwrap_or(false);
    fields.finish()?;
    Ok((tool_of(named, &name, description, parameters, &at)?, strict))
}

/// A tool as templates take it; `name_at` and `schema_at` are the paths of its name and of the schema of its
/// parameters.
pub(crate) fn tool_of(
    name: &str,
    name_at: &str,
    description: Option<&str>,
    schema: Option<&Value>,
    schema_at: &str,
) -> Result<Value, ApiError> {
    let fit = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(fit) {
        return Err(wrong!(
            name_at,
            "must be of 1 to {LONGEST_NAME} letters, digits, and `_`, `-`, `.`, `:`, `/`; it is {name:?}"
        ));
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

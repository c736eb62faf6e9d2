//! A request's tools: their names, and the types of their parameters.

use serde_json::Value;
use std::collections::HashMap;

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub struct ToolSet {
    tools: HashMap<String, HashMap<String, Types>>,
}

impl ToolSet {
    /// From each tool's name and the JSON schema of its parameters (any value; one that is not a schema is
    /// ignored).
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>) -> ToolSet {
        let types = |schema: &Value| match schema.get("properties").and_then(Value::as_object) {
            None => HashMap::new(),
            Some(properties) => {
                let one = |(name, property): (&String, &Value)| (name.clone(), Types::of(property, schema));
                properties.iter().map(one).collect()
            }
        };
        ToolSet { tools: tools.into_iter().map(|(name, schema)| (name.to_owned(), types(schema))).collect() }
    }

    /// The names of all tools.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Whether a parameter is read as a string in formats that write strings without quotes.
    pub fn reads_text(&self, tool: &str, parameter: &str) -> bool {
        self.types(tool, parameter).string()
    }

    /// The types of a parameter; an unknown one is a string.
    pub(crate) fn types(&self, tool: &str, parameter: &str) -> Types {
        self.tools.get(tool).and_then(|tool| tool.get(parameter)).copied().unwrap_or(Types(Types::STRING))
    }
}

/// Types of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    const STRING: u8 = 1;
    const NULL: u8 = 2;
    const BOOLEAN: u8 = 4;
    const INTEGER: u8 = 8;
    const NUMBER: u8 = 16;
    const ARRAY: u8 = 32;
    const OBJECT: u8 = 64;
    /// Most references and unions followed; beyond that, a schema is ignored.
    const DEPTH: usize = 8;

    fn of(schema: &Value, root: &Value) -> Types {
        match Types::collect(schema, root, 0) {
            0 => Types(Types::STRING),
            types => Types(types),
        }
    }

    fn collect(schema: &Value, root: &Value, depth: usize) -> u8 {
        if depth > Types::DEPTH {
            return 0;
        }
        let mut types = 0;
        match schema.get("type") {
            Some(Value::String(name)) => types |= Types::named(name),
            Some(Value::Array(names)) => {
                types |=
                    names.iter().filter_map(Value::as_str).map(Types::named).fold(0, |all, one| all | one);
            }
            _ => {}
        }
        if types == 0 {
            let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            types |= values.chain(schema.get("const")).map(Types::of_value).fold(0, |all, one| all | one);
        }
        for union in ["anyOf", "oneOf", "allOf"] {
            for choice in schema.get(union).and_then(Value::as_array).into_iter().flatten() {
                types |= Types::collect(choice, root, depth + 1);
            }
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            types |= Types::collect(target, root, depth + 1);
        }
        types
    }

    fn named(name: &str) -> u8 {
        match name {
            "string" => Types::STRING,
            "null" => Types::NULL,
            "boolean" => Types::BOOLEAN,
            "integer" => Types::INTEGER,
            "number" => Types::NUMBER,
            "array" => Types::ARRAY,
            "object" => Types::OBJECT,
            _ => 0,
        }
    }

    fn of_value(value: &Value) -> u8 {
        match value {
            Value::String(_) => Types::STRING,
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
                Types::INTEGER
            }
            Value::Number(_) => Types::NUMBER,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }

    pub(crate) fn string(self) -> bool {
        self.0 & Types::STRING != 0
    }

    pub(crate) fn null(self) -> bool {
        self.0 & Types::NULL != 0
    }

    /// The JSON text of an unquoted value, if it has one of these types. Booleans and null may be spelled as
    /// in Python, because templates print them that way.
    pub(crate) fn read(self, text: &str) -> Option<&str> {
        let text = match text.trim() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            text => text,
        };
        let of = Types::of_value(&serde_json::from_str(text).ok()?);
        let integer = if of == Types::INTEGER { Types::NUMBER } else { 0 };
        (self.0 & (of | integer) != 0).then_some(text)
    }
}

//! Short functions that write JSON schemas.

use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// Anything, null included: fields that are not read.
pub(crate) fn any() -> Value {
    json!({})
}

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}

pub(crate) fn boolean() -> Value {
    json!({"type": "boolean"})
}

/// An integer within a range of 64 bits.
pub(crate) fn integer(range: RangeInclusive<i64>) -> Value {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
}

/// The schema of a count.
pub(crate) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(crate) fn within(low: f64, high: f64) -> Value {
    json!({"type": "number", "minimum": low, "maximum": high})
}

pub(crate) fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// An array of at least one.
pub(crate) fn some(items: Value) -> Value {
    json!({"type": "array", "items": items, "minItems": 1})
}

/// An array that is bounded.
pub(crate) fn at_most(most: usize, items: Value) -> Value {
    json!({"type": "array", "items": items, "maxItems": most})
}

/// One of these texts.
pub(crate) fn words(words: &[impl AsRef<str>]) -> Value {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    json!({"type": "string", "enum": words})
}

/// One value only.
pub(crate) fn only(value: impl Into<Value>) -> Value {
    json!({"enum": [value.into()]})
}

/// An unsupported field: only null is allowed.
pub(crate) fn unsupported() -> Value {
    json!({"type": "null", "description": "Not supported."})
}

/// A field that is not supported beyond an empty object or array.
pub(crate) fn empty() -> Value {
    json!({
        "anyOf": [{"type": "object", "maxProperties": 0}, {"type": "array", "maxItems": 0}], "description": "Not supported.",
    })
}

/// An object of anything.
pub(crate) fn any_object() -> Value {
    json!({"type": "object"})
}

pub(crate) fn any_of(schemas: impl Into<Vec<Value>>) -> Value {
    json!({"anyOf": schemas.into()})
}

/// A schema, or null.
pub(crate) fn or_null(schema: Value) -> Value {
    any_of([schema, json!({"type": "null"})])
}

/// A schema of the components.
pub(crate) fn of(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(crate) fn about(description: &str, mut schema: Value) -> Value {
    schema["description"] = description.into();
    schema
}

/// Names and schemas.
pub(crate) type Properties = Vec<(&'static str, Value)>;

/// [`Properties`], several a line: `properties! { id: text(), created: count() }`.
macro_rules! properties {
    ($($name:ident: $schema:expr),* $(,)?) => { vec![$((stringify!($name), $schema)),*] };
}
pub(crate) use properties;

/// [`whole`] of [`properties!`].
macro_rules! object {
    ($($name:ident: $schema:expr),* $(,)?) => {
        $crate::openapi::schema::whole(vec![$((stringify!($name), $schema)),*])
    };
}
pub(crate) use object;

/// An object of a request: of these and no other properties. Those that are not required may be null, which
/// is as if they were not there.
pub(crate) fn request(required: &[&str], properties: Properties) -> Value {
    let one = |(name, schema): (&'static str, Value)| {
        let takes_null = schema == any() || schema["type"] == "null";
        (name, if required.contains(&name) || takes_null { schema } else { nullable(schema) })
    };
    answer(required, properties.into_iter().map(one).collect())
}

/// An object of an answer: of these and no other properties.
pub(crate) fn answer(required: &[&str], properties: Properties) -> Value {
    let properties: Map<String, Value> =
        properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// An object of an answer that always has all of its properties.
pub(crate) fn whole(properties: Properties) -> Value {
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    answer(&names, properties)
}

/// An object of an answer that may have more properties.
pub(crate) fn also(mut schema: Value, properties: Properties) -> Value {
    for (name, property) in properties {
        schema["properties"][name] = property;
    }
    schema
}

/// The same with null, its description where it was.
fn nullable(mut schema: Value) -> Value {
    let description = schema.as_object_mut().and_then(|map| map.shift_remove("description"));
    let schema = or_null(schema);
    match description {
        Some(Value::String(description)) => about(&description, schema),
        _ => schema,
    }
}

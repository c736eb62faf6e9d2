//! Words to write JSON schemas with.

use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// Anything at all, null too: fields that are read by nobody.
pub(super) fn any() -> Value {
    json!({})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

/// An integer within a range of 64 bits.
pub(super) fn integer(range: RangeInclusive<i64>) -> Value {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
}

/// How many there are of something.
pub(super) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(super) fn within(low: f64, high: f64) -> Value {
    json!({"type": "number", "minimum": low, "maximum": high})
}

/// Above 0, up to a number.
pub(super) fn above_zero(high: f64) -> Value {
    json!({"type": "number", "exclusiveMinimum": 0, "maximum": high})
}

pub(super) fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// An array of at least one.
pub(super) fn some(items: Value) -> Value {
    json!({"type": "array", "items": items, "minItems": 1})
}

/// One of these texts.
pub(super) fn words(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

/// One value only.
pub(super) fn only(value: impl Into<Value>) -> Value {
    json!({"enum": [value.into()]})
}

/// A field whose name is known and that nothing but null may stand in: it is not supported.
pub(super) fn unsupported() -> Value {
    json!({"type": "null", "description": "Not supported."})
}

/// A field that is not supported beyond an empty object or array.
pub(super) fn empty() -> Value {
    json!({
        "anyOf": [{"type": "object", "maxProperties": 0}, {"type": "array", "maxItems": 0}], "description": "Not supported.",
    })
}

/// An object of anything.
pub(super) fn any_object() -> Value {
    json!({"type": "object"})
}

pub(super) fn any_of<const N: usize>(schemas: [Value; N]) -> Value {
    json!({"anyOf": schemas.to_vec()})
}

/// A schema, or null.
pub(super) fn or_null(schema: Value) -> Value {
    any_of([schema, json!({"type": "null"})])
}

/// A schema of the components.
pub(super) fn of(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn about(description: &str, mut schema: Value) -> Value {
    schema["description"] = description.into();
    schema
}

/// Names and schemas.
pub(super) type Properties = Vec<(&'static str, Value)>;

/// An object of a request: of these and no other properties. Those that are not required may be null, which
/// is as if they were not there.
pub(super) fn request(required: &[&str], properties: Properties) -> Value {
    let one = |(name, schema): (&'static str, Value)| {
        let takes_null = schema == any() || schema["type"] == "null";
        (name, if required.contains(&name) || takes_null { schema } else { nullable(schema) })
    };
    answer(required, properties.into_iter().map(one).collect())
}

/// An object of an answer: of these and no other properties.
pub(super) fn answer(required: &[&str], properties: Properties) -> Value {
    let properties: Map<String, Value> =
        properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// An object of an answer that always has all of its properties.
pub(super) fn whole(properties: Properties) -> Value {
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    answer(&names, properties)
}

/// An object of an answer that may have more properties.
pub(super) fn also(mut schema: Value, properties: Properties) -> Value {
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

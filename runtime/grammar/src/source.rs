//! Sources of constraints.

use serde_json::Value;

/// Most bytes of a source, over all its parts.
pub(crate) const MAX_BYTES: usize = 512 * 1024;
/// Most texts of a choice.
pub(crate) const MAX_CHOICES: usize = 4096;

/// The source of a constraint, as a request gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under a schema.
    JsonSchema(Value),
    /// A full match of a regular expression.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Source {
    /// Its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Source::JsonObject => 0,
            Source::JsonSchema(schema) => size(schema),
            Source::Regex(text) | Source::Lark(text) => text.len(),
            Source::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        }
    }
}

/// The approximate size of a value as JSON, in bytes.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>() + 2,
    }
}

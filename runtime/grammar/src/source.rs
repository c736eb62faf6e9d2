//! Sources of constraints.

use serde_json::Value;

/// Most bytes of a source, in all.
pub(crate) const MAX_BYTES: usize = 512 * 1024;
/// Most texts to choose from.
pub(crate) const MAX_CHOICES: usize = 4096;

/// The source of a constraint, as a request gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Some JSON object.
    JsonObject,
    /// JSON that is valid under a schema.
    JsonSchema(Value),
    /// A text that a regular expression matches, all of it.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark's notation.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Source {
    /// Its size in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Source::JsonObject => 0,
            Source::JsonSchema(schema) => size(schema),
            Source::Regex(text) | Source::Lark(text) => text.len(),
            Source::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        }
    }
}

/// About the bytes of a value, written down.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>() + 2,
    }
}

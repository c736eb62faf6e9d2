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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_about_those_of_the_text() {
        for (value, bytes) in [
            (json!(null), 8),
            (json!(true), 8),
            (json!(12), 8),
            (json!("abc"), 5),
            (json!([]), 2),
            (json!(["abc", "d"]), 2 + 6 + 4),
            (json!({}), 2),
            (json!({"ab": "abc", "c": [1]}), 2 + (2 + 5 + 4) + (1 + 11 + 4)),
        ] {
            assert_eq!(size(&value), bytes, "{value}");
            assert_eq!(Source::JsonSchema(value).bytes(), bytes);
        }
        assert_eq!(Source::JsonObject.bytes(), 0);
        assert_eq!(Source::Regex("abc".into()).bytes(), 3);
        assert_eq!(Source::Lark("abcd".into()).bytes(), 4);
        assert_eq!(Source::Choice(vec!["ab".into(), "c".into()]).bytes(), 5);
    }
}

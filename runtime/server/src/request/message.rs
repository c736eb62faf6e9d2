//! Messages as chat templates take them.

use serde_json::Value;

/// Appends to a message's text in place: copying it for each of many pieces would be quadratic.
pub(crate) fn append(message: &mut Value, name: &str, between: &str, more: &str) {
    match &mut message[name] {
        Value::String(text) => {
            if !text.is_empty() {
                text.push_str(between);
            }
            text.push_str(more);
        }
        none => *none = more.into(),
    }
}

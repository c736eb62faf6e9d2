//! Messages as chat templates take them.

use serde_json::{Value, json};

/// Appends to a message's text in place: copying it for each of many pieces would be quadratic.
pub(crate) fn append(message: &mut Value, name: &str, between: &str, more: &str) {
    match &mut message[name] {
        Value::Array(parts) => match parts.last_mut() {
            Some(last) if last["type"] == "text" => append(last, "text", between, more),
            _ => parts.push(json!({"type": "text", "text": more})),
        },
        Value::String(text) => {
            if !text.is_empty() {
                text.push_str(between);
            }
            text.push_str(more);
        }
        none => *none = more.into(),
    }
}

/// Appends an image to a message's content, behind what it says so far. Only content with images is a list of
/// parts: of others many templates take texts alone.
pub(crate) fn append_image(message: &mut Value) {
    let content = &mut message["content"];
    let said = match content.take() {
        Value::Array(parts) => parts,
        Value::String(text) if !text.is_empty() => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    };
    *content = said.into_iter().chain([json!({"type": "image"})]).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_images_stand_in_the_order_in_which_they_came() {
        let mut message = json!({"role": "user", "content": ""});
        append(&mut message, "content", "", "a");
        append_image(&mut message);
        append_image(&mut message);
        append(&mut message, "content", "-", "b");
        append(&mut message, "content", "-", "c");
        let [a, b] = ["a", "b-c"].map(|text| json!({"type": "text", "text": text}));
        let image = json!({"type": "image"});
        assert_eq!(message["content"], json!([a, image, image, b]));
        let mut first = json!({"role": "user", "content": ""});
        append_image(&mut first);
        assert_eq!(first["content"], json!([image]));
    }
}

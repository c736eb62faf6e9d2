//! Documents of text in messages, as the text that models are shown: chat templates take no documents here.

use super::texts::texts_of;
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any_of, array, of, only, text};
use crate::request::fields::{Fields, Neutral, wrong_type};
use serde_json::{Value, json};

/// Samples of a block, for its schema.
pub(super) fn samples() -> [Value; 2] {
    [
        json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": ""}}),
        json!({"type": "document", "source": {"type": "content", "content": ""}}),
    ]
}

/// The text of a document's block.
///
/// # Errors
/// When it is no text, such as a PDF, or is to be cited.
pub(super) fn read_document(path: &str, block: &Value) -> Result<String, ApiError> {
    let mut fields = Fields::new(path, block)?;
    fields.of(|| only("document")).required_tag("type")?;
    fields.harmless(&["cache_control"]);
    let (title, context) = (fields.string("title")?, fields.string("context")?);
    fields.refuse_unless("citations", &Neutral::Only(json!({"enabled": false})), "citations of documents")?;
    let at = fields.path("source");
    let source = fields.required("source")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, source)?;
    let kind = fields.required_tag("type")?;
    fields.holds("type");
    let said = match kind {
        "text" => {
            let at = fields.path("media_type");
            let media = fields.of(|| only("text/plain")).required_string("media_type")?;
            if media != "text/plain" {
                return Err(wrong!(at, "must be \"text/plain\", not {media:?}"));
            }
            fields.required_string("data")?.to_owned()
        }
        "content" => {
            let at = fields.path("content");
            match fields.of(|| any_of([text(), array(of("AnthropicText"))])).required("content")? {
                Value::String(text) => text.clone(),
                Value::Array(blocks) => texts_of(&at, blocks)?,
                other => return Err(wrong_type(&at, "a string or an array of texts", other)),
            }
        }
        other => {
            let what = format!("documents of type {other:?}; send the text of it as `text`");
            return Err(ApiError::unsupported(fields.path("type"), &what));
        }
    };
    fields.finish()?;
    let tagged = |tag: &str, text: Option<&str>| {
        text.filter(|text| !text.is_empty()).map_or(String::new(), |text| format!("<{tag}>{text}</{tag}>\n"))
    };
    let (title, context) = (tagged("title", title), tagged("context", context));
    Ok(format!("<document>\n{title}{context}{said}\n</document>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_its_text_with_title_and_context() {
        let source = json!({"type": "text", "media_type": "text/plain", "data": "One.\nTwo."});
        let block = json!({"type": "document", "source": source, "title": "Of all", "context": "Draft",
            "citations": {"enabled": false}, "cache_control": {"type": "ephemeral"}});
        let expected = "<document>\n<title>Of all</title>\n<context>Draft</context>\nOne.\nTwo.\n</document>";
        assert_eq!(read_document("a", &block).ok().as_deref(), Some(expected));
        let texts = json!([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]);
        for content in [json!("One.\nTwo."), texts] {
            let source = json!({"type": "content", "content": content});
            let block = json!({"type": "document", "source": source, "title": null});
            let found = read_document("a", &block).ok();
            assert_eq!(found.as_deref(), Some("<document>\nOne.\nTwo.\n</document>"));
        }
    }

    #[test]
    fn what_is_no_text_is_refused_by_its_path() {
        let document = |source: Value| json!({"type": "document", "source": source});
        let text = json!({"type": "text", "media_type": "text/plain", "data": ""});
        let cited = json!({"type": "document", "source": text, "citations": {"enabled": true}});
        for (block, param, words) in [
            (
                document(json!({"type": "base64", "media_type": "application/pdf", "data": ""})),
                "a.source.type",
                "base64",
            ),
            (
                document(json!({"type": "text", "media_type": "text/html", "data": ""})),
                "a.source.media_type",
                "text/plain",
            ),
            (document(json!({"type": "text", "media_type": "text/plain"})), "a.source.data", "required"),
            (
                document(json!({"type": "content", "content": [{"type": "image"}]})),
                "a.source.content[0]",
                "image",
            ),
            (cited, "a.citations", "citations"),
        ] {
            let error = read_document("a", &block).expect_err("it is refused");
            assert_eq!(error.param.as_deref(), Some(param), "{block}: {}", error.message);
            assert!(error.message.contains(words), "{block}: {}", error.message);
        }
    }
}

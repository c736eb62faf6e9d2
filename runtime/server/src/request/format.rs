//! Formats that constrain an answer: OpenAI's `response_format` and its equivalents, vLLM's
//! `structured_outputs` and the older `guided_` names.

use super::described::described;
use super::fields::{Fields, Neutral, no_json, wrong_type, wrong_word};
use crate::error::ApiError;
use crate::openapi::schema::{any_object, any_of, array, boolean, of, only, text as text_schema};
use monomorph_grammar::{GrammarError, Schema, Source};
use serde_json::{Value, json};

/// A format, and the field that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Format {
    /// The field, with the path to the source.
    path: String,
    /// The schema, expression or grammar.
    pub(crate) source: Source,
}

impl Format {
    /// Reads all fields that may ask for a format; at most one may be given.
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Format>, ApiError> {
        let mut asked = vec![
            ("response_format", read_response_format(fields)?),
            ("structured_outputs", read_structured_outputs(fields)?),
        ];
        for way in WAYS {
            fields.about(format_args!("As `structured_outputs.{}`.", way.name));
            asked.push((way.guided, way.read_at(way.guided, fields)?));
        }
        let mut found: Option<(&str, Format)> = None;
        for (field, format) in asked {
            let Some(format) = format else { continue };
            if let Some((earlier, _)) = found {
                let message =
                    format!("`{field}` and `{earlier}` both constrain the answer; give one of them");
                return Err(ApiError::field(field, message));
            }
            found = Some((field, format));
        }
        for (name, what) in [
            ("guided_decoding_backend", "a choice of backend"),
            ("guided_whitespace_pattern", "a whitespace pattern"),
        ] {
            fields.refuse_unless(name, &Neutral::Nothing, what)?;
        }
        Ok(found.map(|(_, format)| format))
    }

    /// The error for a source that cannot be used.
    pub(crate) fn refusal(&self, error: GrammarError) -> ApiError {
        let path = format!("{}{}", self.path, error.path);
        ApiError { code: "unsupported_grammar", ..ApiError::at(path, error.message) }
    }
}

/// OpenAI's field, which chats have.
fn read_response_format(fields: &mut Fields) -> Result<Option<Format>, ApiError> {
    match fields.of(|| of("ResponseFormat")).value("response_format") {
        None => Ok(None),
        Some(value) => read_typed("response_format", value, Some("json_schema")),
    }
}

/// A format that says its type; where it is a schema, that stands in the member `within`, or beside the type.
pub(crate) fn read_typed(
    path: &str,
    value: &Value,
    within: Option<&'static str>,
) -> Result<Option<Format>, ApiError> {
    let mut fields = Fields::new(path, value)?;
    let format = match fields.required_tag("type")? {
        "text" => None,
        "json_object" => Some(Format { path: path.to_owned(), source: Source::JsonObject }),
        "json_schema" => Some(match within {
            None => read_schema(&mut fields)?,
            Some(within) => {
                let inner = fields.path(within);
                let mut inner = Fields::new(&inner, fields.required(within)?)?;
                let format = read_schema(&mut inner)?;
                inner.finish()?;
                format
            }
        }),
        other => {
            let path = fields.path("type");
            return Err(wrong_word(&path, &["text", "json_object", "json_schema"], Some(other)));
        }
    };
    fields.finish()?;
    Ok(format)
}

/// A schema with its name.
fn read_schema(fields: &mut Fields) -> Result<Format, ApiError> {
    fields.string("name")?;
    fields.string("description")?;
    // Every answer is valid.
    let strict = fields.boolean("strict")?.unwrap_or(false);
    let path = fields.path("schema");
    fields.of(|| any_of([any_object(), boolean()]));
    let source = match schema(&path, fields.required("schema")?)? {
        Source::JsonSchema(schema) if strict => Source::JsonSchema(Schema::closed(&schema)),
        source => source,
    };
    Ok(Format { source, path })
}

/// The schema of what [`read_typed`] reads.
pub(crate) fn typed(within: Option<&'static str>) -> Value {
    let schema = match within {
        None => json!({"type": "json_schema", "schema": {}}),
        Some(within) => json!({"type": "json_schema", within: {"schema": {}}}),
    };
    let samples = [json!({"type": "text"}), json!({"type": "json_object"}), schema];
    described("", samples, |format| read_typed("", format, within))
}

/// A schema, validated even if unused.
fn schema(path: &str, value: &Value) -> Result<Source, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Source::JsonSchema(value.clone())),
        other => Err(wrong_type(path, "an object or a boolean", other)),
    }
}

/// vLLM's field: an object with one member.
fn read_structured_outputs(fields: &mut Fields) -> Result<Option<Format>, ApiError> {
    let value = fields.of(|| of("StructuredOutputs")).value("structured_outputs");
    value.map(read_outputs).transpose()
}

fn read_outputs(value: &Value) -> Result<Format, ApiError> {
    let mut fields = Fields::new("structured_outputs", value)?;
    let mut sources = Vec::new();
    for way in WAYS {
        sources.extend(way.read_at(way.name, &mut fields)?.map(|format| (way.name, format)));
    }
    if fields.of(|| only(true)).boolean("json_object")? == Some(true) {
        let path = "structured_outputs.json_object".to_owned();
        sources.push(("json_object", Format { path, source: Source::JsonObject }));
    }
    let Ok([(name, format)]) = <[_; 1]>::try_from(sources) else {
        let message =
            "`structured_outputs` must have one of `json`, `regex`, `grammar`, `choice` and `json_object`";
        return Err(ApiError::field("structured_outputs", message));
    };
    fields.has_only(name);
    fields.finish()?;
    Ok(format)
}

/// The schema of `structured_outputs`.
pub(crate) fn outputs() -> Value {
    let ways = [("json", json!({})), ("regex", json!("")), ("grammar", json!("")), ("choice", json!([]))];
    let samples = ways.into_iter().chain([("json_object", json!(true))]);
    described("structured_outputs", samples.map(|(name, value)| json!({name: value})), read_outputs)
}

/// A way to say what an answer is constrained to.
#[derive(Clone, Copy)]
struct Way {
    /// In vLLM's field.
    name: &'static str,
    /// As a field of its own.
    guided: &'static str,
    read: fn(&str, &Value) -> Result<Source, ApiError>,
    schema: fn() -> Value,
}

const WAYS: [Way; 4] = [
    Way { name: "json", guided: "guided_json", read: json, schema: schema_or_text },
    Way { name: "regex", guided: "guided_regex", read: regex, schema: text_schema },
    Way { name: "grammar", guided: "guided_grammar", read: lark, schema: text_schema },
    Way { name: "choice", guided: "guided_choice", read: choice, schema: || array(text_schema()) },
];

impl Way {
    fn read_at(self, name: &'static str, fields: &mut Fields) -> Result<Option<Format>, ApiError> {
        let path = fields.path(name);
        let Some(value) = fields.of(self.schema).value(name) else { return Ok(None) };
        Ok(Some(Format { source: (self.read)(&path, value)?, path }))
    }
}

fn schema_or_text() -> Value {
    any_of([any_object(), boolean(), text_schema()])
}

/// A schema, or its text.
fn json(path: &str, value: &Value) -> Result<Source, ApiError> {
    let Value::String(text) = value else { return schema(path, value) };
    let parsed = serde_json::from_str(text);
    let refused = |error| ApiError::at(path, no_json(text.as_bytes(), &error));
    let parsed = parsed.map_err(refused)?;
    schema(path, &parsed)
}

fn regex(path: &str, value: &Value) -> Result<Source, ApiError> {
    text(path, value).map(Source::Regex)
}

fn lark(path: &str, value: &Value) -> Result<Source, ApiError> {
    text(path, value).map(Source::Lark)
}

fn text(path: &str, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong_type(path, "a string", other)),
    }
}

fn choice(path: &str, value: &Value) -> Result<Source, ApiError> {
    let Value::Array(texts) = value else { return Err(wrong_type(path, "an array of strings", value)) };
    let texts = texts.iter().enumerate().map(|(at, one)| text(&format!("{path}[{at}]"), one));
    Ok(Source::Choice(texts.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Option<Format>, (String, String)> {
        let mut fields = Fields::new("", &body).expect("an object");
        let format = Format::read(&mut fields).and_then(|format| fields.finish().map(|_| format));
        format.map_err(|error| (error.param.unwrap_or_default(), error.message))
    }

    #[test]
    fn every_way_to_say_it() {
        let schema = json!({"type": "object"});
        let of_schema =
            |path: &str| Format { path: path.to_owned(), source: Source::JsonSchema(schema.clone()) };
        let of_response = |strict: Value| json!({"type": "json_schema", "json_schema": {"name": "a", "strict": strict, "schema": schema}});
        let closed = json!({"type": "object", "additionalProperties": false});
        let strict = Format {
            path: "response_format.json_schema.schema".to_owned(),
            source: Source::JsonSchema(closed),
        };
        for (body, expected) in [
            (json!({}), None),
            (json!({"response_format": null}), None),
            (json!({"response_format": {"type": "text"}}), None),
            (
                json!({"response_format": {"type": "json_object"}}),
                Some(Format { path: "response_format".to_owned(), source: Source::JsonObject }),
            ),
            (json!({"response_format": of_response(json!(true))}), Some(strict)),
            (
                json!({"response_format": of_response(json!(false))}),
                Some(of_schema("response_format.json_schema.schema")),
            ),
            (
                json!({"response_format": of_response(json!(null))}),
                Some(of_schema("response_format.json_schema.schema")),
            ),
            (json!({"structured_outputs": {"json": schema}}), Some(of_schema("structured_outputs.json"))),
            (
                json!({"structured_outputs": {"json": schema.to_string()}}),
                Some(of_schema("structured_outputs.json")),
            ),
            (json!({"guided_json": schema}), Some(of_schema("guided_json"))),
            (
                json!({"guided_regex": "a+"}),
                Some(Format { path: "guided_regex".to_owned(), source: Source::Regex("a+".to_owned()) }),
            ),
            (
                json!({"structured_outputs": {"grammar": "start: /a/"}}),
                Some(Format {
                    path: "structured_outputs.grammar".to_owned(),
                    source: Source::Lark("start: /a/".to_owned()),
                }),
            ),
            (
                json!({"guided_choice": ["a", "b"]}),
                Some(Format {
                    path: "guided_choice".to_owned(),
                    source: Source::Choice(vec!["a".to_owned(), "b".to_owned()]),
                }),
            ),
        ] {
            assert_eq!(read(body.clone()), Ok(expected), "{body}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (body, named, word) in [
            (json!({"response_format": 1}), "response_format", "object"),
            (json!({"response_format": {}}), "response_format.type", "required"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type", "xml"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", "required"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
                "response_format.json_schema.schema",
                "required",
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": {}}}),
                "response_format.schema",
                "not a field",
            ),
            (json!({"guided_json": "{"}), "guided_json", "not valid JSON"),
            (json!({"guided_json": "5"}), "guided_json", "an object or a boolean"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [null]}}}),
                "response_format.json_schema.schema",
                "an object or a boolean",
            ),
            (json!({"guided_regex": 5}), "guided_regex", "string"),
            (json!({"guided_choice": ["a", 5]}), "guided_choice[1]", "string"),
            (json!({"structured_outputs": {}}), "structured_outputs", "one of"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs", "one of"),
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice", "both"),
            (json!({"guided_decoding_backend": "outlines"}), "guided_decoding_backend", "not supported"),
        ] {
            let (param, message) = read(body.clone()).expect_err("refused");
            assert_eq!(param, named, "{body}: {message}");
            assert!(message.contains(word), "{body}: {message}");
        }
    }
}

//! JSON schemas: what of them is understood, and what is refused by name.

use crate::error::GrammarError;
use serde_json::{Map, Value, json};

/// Keywords that are followed.
const FOLLOWED: &[&str] = &[
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref", // of everything
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties", // of objects
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems", // of arrays
    "minLength",
    "maxLength",
    "pattern",
    "format", // of strings
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf", // of numbers
];
/// Keywords that say nothing about what is valid.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "id",
    "$comment",
    "$anchor",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];
/// Those of them that are left out before the library sees them: it need not know them.
const LEFT_OUT: &[&str] =
    &["deprecated", "example", "default", "examples", "description", "title", "$comment"];
/// Formats of strings that are followed.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// A date there is: months have their days, and only leap years a 29th of February.
const DATE: &str = concat!(
    "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-",
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29",
);
/// A time, of a precision that programs keep: models that are left to it write digits of a second for ever.
const TIME: &str =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// The pattern of a format that is narrower here than the library has it.
fn pattern_of(format: &str) -> Option<String> {
    Some(match format {
        "date" => format!("^({DATE})$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^({DATE})T{TIME}$"),
        _ => return None,
    })
}

/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// What may stand between two parts of an answer: models that are left to it write spacing for ever.
const SPACING: &str = "[ ]?|\\n[ ]{0,24}";

/// The schema of any object.
pub(crate) fn any_object() -> Value {
    json!({"type": "object", "x-guidance": options()})
}

/// What the library is told beside a schema.
fn options() -> Value {
    json!({"whitespace_flexible": true, "whitespace_pattern": SPACING})
}

/// A schema as the library takes it.
///
/// # Errors
/// When it says something that is not followed: where, and what.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut prepared = read(schema, "", 0)?;
    // A schema may also be `true` or `false`.
    if let Value::Object(map) = &mut prepared {
        map.insert("x-guidance".to_owned(), options());
    }
    Ok(prepared)
}

/// An error at a path.
fn refused(path: &str, message: impl Into<String>) -> GrammarError {
    GrammarError { path: path.to_owned(), message: message.into() }
}

/// A schema at `path`.
fn read(schema: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
    if depth > MAX_DEPTH {
        return Err(refused(path, format!("is nested deeper than {MAX_DEPTH}")));
    }
    let map = match schema {
        Value::Bool(_) => return Ok(schema.clone()),
        Value::Object(map) => map,
        _ => return Err(refused(path, "must be an object or a boolean")),
    };
    let (mut prepared, mut narrower) = (Map::new(), None);
    for (keyword, value) in map {
        let at = format!("{path}.{keyword}");
        let value = match keyword.as_str() {
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                let Value::Object(members) = value else { return Err(refused(&at, "must be an object")) };
                let member = |(name, schema): (&String, &Value)| {
                    Ok((name.clone(), read(schema, &format!("{at}.{name}"), depth + 1)?))
                };
                Value::Object(members.iter().map(member).collect::<Result<_, GrammarError>>()?)
            }
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => schemas(value, &at, depth)?,
            // Before 2020 an array of them was what `prefixItems` is.
            "items" if value.is_array() => schemas(value, &at, depth)?,
            "items" | "additionalItems" | "additionalProperties" => read(value, &at, depth + 1)?,
            "$ref" => match value.as_str() {
                Some(to) if to.starts_with('#') => value.clone(),
                Some(_) => return Err(refused(&at, "leads out of this schema, which is not followed")),
                None => return Err(refused(&at, "must be a string")),
            },
            "format" => match value.as_str() {
                Some(format) if FORMATS.contains(&format) => {
                    narrower = pattern_of(format);
                    if narrower.is_some() {
                        continue;
                    }
                    value.clone()
                }
                Some(format) => {
                    let known = FORMATS.join(", ");
                    return Err(refused(&at, format!("{format:?} is not supported; these are: {known}")));
                }
                None => return Err(refused(&at, "must be a string")),
            },
            known if LEFT_OUT.contains(&known) => continue,
            known if FOLLOWED.contains(&known) || ANNOTATIONS.contains(&known) => value.clone(),
            _ => return Err(refused(&at, "is not supported")),
        };
        prepared.insert(keyword.clone(), value);
    }
    if let Some(pattern) = narrower {
        let pattern = json!({"pattern": pattern});
        match prepared.get_mut("allOf") {
            Some(Value::Array(all)) => all.push(pattern),
            _ => drop(prepared.insert("allOf".to_owned(), json!([pattern]))),
        }
    }
    Ok(Value::Object(prepared))
}

/// An array of schemas.
fn schemas(value: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
    let Value::Array(schemas) = value else { return Err(refused(path, "must be an array")) };
    let schemas = schemas.iter().enumerate();
    let read = schemas.map(|(at, schema)| read(schema, &format!("{path}[{at}]"), depth + 1));
    Ok(Value::Array(read.collect::<Result<_, _>>()?))
}

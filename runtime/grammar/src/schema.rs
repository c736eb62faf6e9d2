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

/// Where schemas stand that others refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// What may stand between two parts of an answer: models that are left to it write spacing for ever.
const SPACING: &str = "[ ]?|\\n[ ]{0,24}";

/// A schema, checked: what of it is followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema(Value);

impl Schema {
    /// All that a schema says.
    ///
    /// # Errors
    /// When it says something that is not followed: where, and what.
    pub fn new(schema: &Value) -> Result<Schema, GrammarError> {
        Reader { left_out: None }.read(schema, "", 0).map(Schema)
    }

    /// What a schema says that is followed, and what is not. Of one that makes no sense nothing is.
    pub fn relaxed(schema: &Value) -> (Schema, Vec<GrammarError>) {
        let mut reader = Reader { left_out: Some(Vec::new()) };
        match reader.read(schema, "", 0) {
            Ok(read) => (Schema(read), reader.left_out.unwrap_or_default()),
            Err(error) => (Schema::any_object(), vec![error]),
        }
    }

    /// That of any object.
    pub fn any_object() -> Schema {
        Schema(json!({"type": "object"}))
    }

    /// What of it is followed.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// A schema within this one, with the definitions that it may refer to.
    pub fn part(&self, part: &Value) -> Schema {
        let mut part = part.clone();
        if let Value::Object(part) = &mut part {
            for definitions in DEFINITIONS {
                if let Some(own) = self.0.get(definitions) {
                    part.entry(definitions).or_insert_with(|| own.clone());
                }
            }
        }
        Schema(part)
    }

    /// As the library takes it.
    pub(crate) fn prepared(&self) -> Value {
        let mut prepared = self.0.clone();
        // A schema may also be `true` or `false`.
        if let Value::Object(map) = &mut prepared {
            let options = json!({"whitespace_flexible": true, "whitespace_pattern": SPACING});
            map.insert("x-guidance".to_owned(), options);
        }
        prepared
    }
}

/// An error at a path.
fn refused(path: &str, message: impl Into<String>) -> GrammarError {
    GrammarError { path: path.to_owned(), message: message.into() }
}

/// Reads a schema.
struct Reader {
    /// What is left out because it is not followed; `None` where that is refused.
    left_out: Option<Vec<GrammarError>>,
}

impl Reader {
    /// Takes note of what is not followed.
    fn leave_out(&mut self, refused: GrammarError) -> Result<(), GrammarError> {
        match &mut self.left_out {
            None => return Err(refused),
            Some(left_out) => left_out.push(refused),
        }
        Ok(())
    }

    /// A schema at `path`.
    fn read(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
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
                    let Value::Object(members) = value else {
                        return Err(refused(&at, "must be an object"));
                    };
                    let member = |(name, schema): (&String, &Value)| {
                        Ok((name.clone(), self.read(schema, &format!("{at}.{name}"), depth + 1)?))
                    };
                    Value::Object(members.iter().map(member).collect::<Result<_, GrammarError>>()?)
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => self.schemas(value, &at, depth)?,
                // Before 2020 an array of them was what `prefixItems` is.
                "items" if value.is_array() => self.schemas(value, &at, depth)?,
                "items" | "additionalItems" | "additionalProperties" => self.read(value, &at, depth + 1)?,
                "$ref" => match value.as_str() {
                    Some(to) if to.starts_with('#') => value.clone(),
                    Some(_) => {
                        self.leave_out(refused(&at, "leads out of this schema, which is not followed"))?;
                        continue;
                    }
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
                        let message = format!("{format:?} is not supported; these are: {known}");
                        self.leave_out(refused(&at, message))?;
                        continue;
                    }
                    None => return Err(refused(&at, "must be a string")),
                },
                known if LEFT_OUT.contains(&known) => continue,
                known if FOLLOWED.contains(&known) || ANNOTATIONS.contains(&known) => value.clone(),
                _ => {
                    self.leave_out(refused(&at, "is not supported"))?;
                    continue;
                }
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
    fn schemas(&mut self, value: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
        let Value::Array(schemas) = value else { return Err(refused(path, "must be an array")) };
        let schemas = schemas.iter().enumerate();
        let read = schemas.map(|(at, schema)| self.read(schema, &format!("{path}[{at}]"), depth + 1));
        Ok(Value::Array(read.collect::<Result<_, _>>()?))
    }
}

//! JSON schemas: which keywords are enforced, and which are rejected by name.

use crate::bounds::{self, ANNOTATIONS};
use crate::error::GrammarError;
use crate::numbers::{self, Multiple, kind};
use crate::references::{References, Target};
use crate::{width, words};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The types of JSON schemas.
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Formats of strings that are enforced.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// A date that exists: months have their days, and only leap years a 29th of February.
const DATE: &str = concat!(
    "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-",
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29",
);
/// A time with a precision that programs keep: without a bound, models write fractions of a second for ever.
const TIME: &str =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// The pattern of a format that is narrower here than in the library.
fn pattern_of(format: &str) -> Option<String> {
    Some(match format {
        "date" => format!("^({DATE})$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^({DATE})T{TIME}$"),
        _ => return None,
    })
}

/// The keyword of definitions in a schema that has been read.
const DEFINITIONS: &str = "$defs";
/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// The text between two members or items, and between a name and its value: one space or none. No other
/// spacing is allowed: without a bound, models write spacing for ever.
const BETWEEN_ITEMS: &str = ", ?";
const BEHIND_A_NAME: &str = ": ?";
/// Escapes in strings, except those by number.
const PLAIN_ESCAPES: &str = "nrbtf\\\"";

/// A checked schema: the part of it that is enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    value: Value,
    /// Whether undeclared names may occur beside declared ones. A name then has a single spelling: with
    /// escapes by number it would have several, and a declared name could occur again in another spelling.
    spelled: bool,
    /// Original paths of the definitions in `$defs`, by name.
    origins: Vec<(String, String)>,
}

impl Schema {
    /// Reads a schema and enforces all of it.
    ///
    /// # Errors
    /// When it contains something that is not enforced: the path, and the reason.
    pub fn new(schema: &Value) -> Result<Schema, GrammarError> {
        bounds::schema(schema)?;
        Reader::new(schema, None).whole(schema).map(|(schema, _)| schema)
    }

    /// Reads a schema; returns the part that is enforced, and the errors of the rest. An invalid schema is
    /// not enforced at all.
    pub fn relaxed(schema: &Value) -> (Schema, Vec<GrammarError>) {
        if let Err(error) = bounds::schema(schema) {
            return (Schema::any_object(), vec![error]);
        }
        match Reader::new(schema, Some(Vec::new())).whole(schema) {
            Ok(read) => read,
            Err(error) => (Schema::any_object(), vec![error]),
        }
    }

    /// The schema under `strict`: objects that do not say which other members they may have may have none.
    pub fn closed(schema: &Value) -> Value {
        crate::closed::closed(schema)
    }

    /// The schema of any object.
    pub fn any_object() -> Schema {
        Schema { value: json!({"type": "object"}), spelled: false, origins: Vec::new() }
    }

    /// The part of it that is enforced.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// A schema within this one, with the definitions it may refer to.
    pub fn part(&self, part: &Value) -> Schema {
        let mut part = part.clone();
        if let (Value::Object(part), Some(own)) = (&mut part, self.value.get(DEFINITIONS)) {
            part.entry(DEFINITIONS).or_insert_with(|| own.clone());
        }
        Schema { value: part, ..self.clone() }
    }

    /// The schema as input for the library.
    pub(crate) fn prepared(&self) -> Value {
        let mut prepared = match &self.value {
            Value::Bool(true) => json!({}),
            other => other.clone(),
        };
        // A schema may also be `false`.
        if let Value::Object(map) = &mut prepared {
            let mut options = json!({
                "whitespace_flexible": false, "item_separator": BETWEEN_ITEMS, "key_separator": BEHIND_A_NAME,
            });
            if self.spelled {
                options["json_allowed_escapes"] = PLAIN_ESCAPES.into();
            }
            map.insert("x-guidance".to_owned(), options);
        }
        prepared
    }

    /// The parts of a schema that was read, with their paths in the client's schema.
    pub(crate) fn parts(&self) -> Vec<(String, Schema)> {
        let mut parts = Vec::new();
        for (keyword, value) in self.value.as_object().into_iter().flatten() {
            let keyword = keyword.as_str();
            match (keyword, value) {
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                    let each = schemas.iter().enumerate();
                    parts.extend(each.map(|(at, part)| (format!(".{keyword}[{at}]"), self.part(part))));
                }
                ("items" | "additionalItems" | "additionalProperties", part) => {
                    parts.push((format!(".{keyword}"), self.part(part)));
                }
                ("properties" | "patternProperties", Value::Object(members)) => {
                    let each = members.iter();
                    parts.extend(each.map(|(name, part)| (format!(".{keyword}.{name}"), self.part(part))));
                }
                _ => {}
            }
        }
        parts
    }

    /// The definitions in `$defs`, with their paths in the client's schema.
    pub(crate) fn definitions(&self) -> Vec<(String, Schema)> {
        let definition = |(name, path): &(String, String)| {
            let part = self.value.get(DEFINITIONS)?.get(name)?;
            Some((path.clone(), self.part(part)))
        };
        self.origins.iter().filter_map(definition).collect()
    }
}

/// An error at a path.
fn refused(path: &str, message: impl Into<String>) -> GrammarError {
    GrammarError { path: path.to_owned(), message: message.into() }
}

/// Reads a schema.
struct Reader<'a> {
    /// Errors of dropped parts that are not enforced; `None` if these are rejected.
    left_out: Option<Vec<GrammarError>>,
    references: References<'a>,
    /// The combination of all `multipleOf`, because the library may combine them where it merges schemas; and
    /// whether it merges any.
    multiple: Option<Multiple>,
    joined: bool,
    /// Path of the first `multipleOf` that cannot be combined with the others.
    too_many: Option<String>,
    /// Whether an object may have names beside the declared ones.
    open: bool,
    /// Path of the first text with a character that can only be written as an escape by number.
    control: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(schema: &'a Value, left_out: Option<Vec<GrammarError>>) -> Reader<'a> {
        Reader {
            left_out,
            references: References::new(schema),
            multiple: None,
            joined: false,
            too_many: None,
            open: false,
            control: None,
        }
    }

    /// Reads the whole schema with everything it refers to; returns it with the errors of dropped parts.
    fn whole(mut self, schema: &Value) -> Result<(Schema, Vec<GrammarError>), GrammarError> {
        let mut value = self.read(schema, "", 0)?;
        let (mut definitions, mut origins) = (Map::new(), Vec::new());
        while let Some(Target { name, path, schema }) = self.references.next() {
            definitions.insert(name.clone(), self.read(schema, &path, 0)?);
            origins.push((name, path));
        }
        if let (Value::Object(map), false) = (&mut value, definitions.is_empty()) {
            map.insert(DEFINITIONS.to_owned(), definitions.into());
        }
        if let Some(at) = self.too_many.take().filter(|_| self.joined) {
            let message = "has no least common multiple with the others below 4294967296, which is needed where \
                           schemas are put together";
            return Err(refused(&at, message));
        }
        if let Some(at) = self.control.take().filter(|_| self.open) {
            let message = "has a control character, which is followed only where no object may have other members than \
                           those declared: give them `additionalProperties: false`";
            return Err(refused(&at, message));
        }
        if let Some((path, why)) = width::too_wide(&value) {
            let known = |(name, origin): &(String, String)| {
                let rest = path.strip_prefix(&format!(".{DEFINITIONS}.{name}"))?;
                Some(format!("{origin}{rest}"))
            };
            return Err(refused(&origins.iter().find_map(known).unwrap_or(path), why));
        }
        let (spelled, left_out) = (self.open, self.left_out.unwrap_or_default());
        Ok((Schema { value, spelled, origins }, left_out))
    }

    /// Records a part that is not enforced, or rejects it.
    fn leave_out(&mut self, refused: GrammarError) -> Result<(), GrammarError> {
        match &mut self.left_out {
            None => return Err(refused),
            Some(left_out) => left_out.push(refused),
        }
        Ok(())
    }

    /// The part if it is enforced; otherwise nothing, and its error is recorded.
    fn or_leave_out<T>(&mut self, read: Result<T, String>, path: &str) -> Result<Option<T>, GrammarError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(why) => self.leave_out(refused(path, why)).map(|()| None),
        }
    }

    /// Reads the schema at `path`.
    fn read(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
        if depth > MAX_DEPTH {
            return Err(refused(path, format!("is nested deeper than {MAX_DEPTH}")));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            other => {
                return Err(refused(path, format!("must be an object or a boolean, and is {}", kind(other))));
            }
        };
        let (mut prepared, mut narrower) = (Map::new(), None);
        for (keyword, value) in map {
            let at = format!("{path}.{keyword}");
            // Formats that are narrower here than in the library.
            if keyword == "format"
                && let Some(pattern) = value.as_str().and_then(pattern_of)
            {
                narrower = Some(pattern);
                continue;
            }
            if let Some(value) = self.keyword(map, keyword, value, &at, depth)? {
                prepared.insert(keyword.clone(), value);
            }
        }
        if let Some(pattern) = narrower {
            let pattern = json!({"pattern": pattern});
            match prepared.get_mut("allOf") {
                Some(Value::Array(all)) => all.push(pattern),
                _ => drop(prepared.insert("allOf".to_owned(), json!([pattern]))),
            }
        }
        self.names(&mut prepared, path)?;
        met(&mut prepared);
        let joins = |keyword: &&str| prepared.contains_key(*keyword);
        self.joined |= prepared.contains_key("allOf")
            || (["anyOf", "oneOf", "$ref"].iter().any(joins) && prepared.len() > 1);
        Ok(Value::Object(prepared))
    }

    /// Reads a keyword; returns nothing if it constrains nothing or is not enforced.
    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        keyword: &str,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<Option<Value>, GrammarError> {
        let wrong = |wanted: &str| Err(refused(at, format!("must be {wanted}, and is {}", kind(value))));
        Ok(match keyword {
            known if ANNOTATIONS.contains(&known) => None,
            // OpenAPI's hint for selecting an option.
            "discriminator" => None,
            "$schema" => Some(value.clone()).filter(Value::is_string),
            "uniqueItems" if *value == false => None,
            // They constrain nothing without one another.
            "then" | "else" if !map.contains_key("if") => None,
            "if" if !map.contains_key("then") && !map.contains_key("else") => None,
            "type" => Some(types(value, at)?),
            "const" => {
                self.note_controls(value, at);
                self.constant(value, at)?
            }
            "enum" => {
                let Value::Array(values) = value else { return wrong("an array") };
                if values.is_empty() {
                    return Err(refused(at, "must have at least one value"));
                }
                self.note_controls(value, at);
                self.constant(value, at)?
            }
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => Some(value.clone()),
                _ => return wrong("an array of strings"),
            },
            "properties" => Some(self.members(value, at, depth)?.into()),
            "patternProperties" => {
                let Some(patterns) = value.as_object() else { return wrong("an object") };
                let mut members = Map::new();
                for (pattern, schema) in patterns {
                    let at = format!("{at}.{pattern}");
                    if self.or_leave_out(words::pattern(pattern), &at)?.is_some() {
                        members.insert(pattern.clone(), self.read(schema, &at, depth + 1)?);
                    }
                }
                Some(members.into())
            }
            "anyOf" | "oneOf" => {
                if value.as_array().is_some_and(Vec::is_empty) {
                    return Err(refused(at, "must have at least one schema"));
                }
                Some(self.schemas(value, at, depth)?)
            }
            "prefixItems" if map.contains_key("additionalItems") => {
                self.leave_out(refused(at, "is not followed beside the older `additionalItems`"))?;
                None
            }
            "allOf" | "prefixItems" => Some(self.schemas(value, at, depth)?),
            // Before draft 2020-12, an array in `items` meant `prefixItems`.
            "items" if value.is_array() => Some(self.schemas(value, at, depth)?),
            "items" | "additionalItems" | "additionalProperties" => Some(self.read(value, at, depth + 1)?),
            "$ref" => {
                let Some(reference) = value.as_str() else { return wrong("a string") };
                let followed = self.references.follow(reference);
                self.or_leave_out(followed, at)?.map(Value::from)
            }
            "pattern" => {
                let Some(pattern) = value.as_str() else { return wrong("a string") };
                self.or_leave_out(words::pattern(pattern), at)?.map(|()| value.clone())
            }
            "format" => match value.as_str() {
                Some(format) if FORMATS.contains(&format) => Some(value.clone()),
                Some(format) => {
                    let message = format!("{format:?} is not supported; these are: {}", FORMATS.join(", "));
                    self.leave_out(refused(at, message))?;
                    None
                }
                None => return wrong("a string"),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                match self.or_leave_out(numbers::count(value), at)? {
                    Some(count) if !numbers::is_endless(count) => Some(count.into()),
                    Some(_) if keyword.starts_with("min") => {
                        self.leave_out(refused(at, "is more than any answer has"))?;
                        None
                    }
                    _ => None,
                }
            }
            // The absence of a bound in older drafts.
            "exclusiveMinimum" | "exclusiveMaximum" if *value == false => None,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                let bound = numbers::bound(value, keyword.starts_with("exclusive"));
                self.or_leave_out(bound, at)?.map(Value::Number)
            }
            "multipleOf" => match self.or_leave_out(numbers::multiple(value), at)? {
                Some((number, multiple)) => {
                    self.note_multiple(multiple, at);
                    Some(number.into())
                }
                None => None,
            },
            _ => {
                self.leave_out(refused(at, "is not supported"))?;
                None
            }
        })
    }

    /// Reads schemas by name.
    fn members(
        &mut self,
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Result<Map<String, Value>, GrammarError> {
        let Value::Object(members) = value else {
            return Err(refused(path, format!("must be an object, and is {}", kind(value))));
        };
        let member = |(name, schema): (&String, &Value)| {
            Ok((name.clone(), self.read(schema, &format!("{path}.{name}"), depth + 1)?))
        };
        members.iter().map(member).collect()
    }

    /// Reads an array of schemas.
    fn schemas(&mut self, value: &Value, path: &str, depth: usize) -> Result<Value, GrammarError> {
        let Value::Array(schemas) = value else {
            return Err(refused(path, format!("must be an array, and is {}", kind(value))));
        };
        let schemas = schemas.iter().enumerate();
        let read = schemas.map(|(at, schema)| self.read(schema, &format!("{path}[{at}]"), depth + 1));
        Ok(Value::Array(read.collect::<Result<_, _>>()?))
    }

    /// Reads a constant, or several.
    fn constant(&mut self, value: &Value, at: &str) -> Result<Option<Value>, GrammarError> {
        match numbers::constant(value) {
            Ok(value) => Ok(Some(value)),
            Err((path, why)) => self.leave_out(refused(&format!("{at}{path}"), why)).map(|()| None),
        }
    }

    /// Records a text that needs an escape by number.
    fn note_controls(&mut self, value: &Value, at: &str) {
        let needs = |it: char| it == '\u{7f}' || (it.is_ascii_control() && !"\n\r\t\u{8}\u{c}".contains(it));
        match value {
            Value::String(text) if text.contains(needs) => {
                self.control.get_or_insert_with(|| at.to_owned());
            }
            Value::Array(items) => items.iter().for_each(|item| self.note_controls(item, at)),
            Value::Object(members) => members.values().for_each(|value| self.note_controls(value, at)),
            _ => {}
        }
    }

    /// Records the value of a `multipleOf`.
    fn note_multiple(&mut self, multiple: Multiple, at: &str) {
        match self.multiple.map_or(Some(multiple), |other| other.with(multiple)) {
            Some(both) => self.multiple = Some(both),
            None => {
                self.too_many.get_or_insert_with(|| at.to_owned());
            }
        }
    }

    /// Checks the bounds on the number of members, as far as members can be counted: an undeclared name may
    /// occur twice, but is one member to a parser.
    fn names(&mut self, map: &mut Map<String, Value>, path: &str) -> Result<(), GrammarError> {
        let none = Map::new();
        let declared = map.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
        let patterns =
            map.get("patternProperties").and_then(Value::as_object).is_some_and(|it| !it.is_empty());
        let others = map.get("additionalProperties").is_none_or(|it| *it != false);
        let optional = declared.keys().any(|name| !required.contains(name.as_str()));
        self.open |= others && (patterns || !declared.is_empty() || !required.is_empty());
        let count = |keyword| map.get(keyword).and_then(Value::as_u64).map(|count| count as usize);
        let least = count("minProperties").map_or(0, |least| least.saturating_sub(required.len()));
        let most = count("maxProperties").map(|most| most.saturating_sub(required.len()));
        let one_of_them = least <= 1 && most.unwrap_or(1) == 1 && !patterns && !others;
        let keyword = if least > 0 { "minProperties" } else { "maxProperties" };
        if optional && (least > 0 || most.is_some()) && !one_of_them {
            let message = "is followed beside members that are not required only to ask for one of them, and where \
                           `additionalProperties` is false";
            self.leave_out(refused(&format!("{path}.{keyword}"), message))?;
            map.retain(|keyword, _| keyword != "minProperties" && keyword != "maxProperties");
        } else if least > 1 && (patterns || others) {
            let message = "is followed up to one more than `required` has: names that are not declared may come \
                           twice, and count once";
            self.leave_out(refused(&format!("{path}.minProperties"), message))?;
            map.remove("minProperties");
        }
        Ok(())
    }
}

/// Replaces exclusive bounds that the library does not enforce everywhere by inclusive ones.
fn met(map: &mut Map<String, Value>) {
    if map.get("type").is_some_and(|it| it == "integer") {
        return;
    }
    for (exclusive, keyword, least) in
        [("exclusiveMinimum", "minimum", true), ("exclusiveMaximum", "maximum", false)]
    {
        let Some(Value::Number(bound)) = map.get(exclusive) else { continue };
        let Some(bound) = numbers::inclusive(bound, least) else { continue };
        let is_tighter =
            |other: f64| bound.as_f64().is_some_and(|it| if least { it > other } else { it < other });
        if map.get(keyword).and_then(Value::as_f64).is_none_or(is_tighter) {
            map.insert(keyword.to_owned(), bound.into());
        }
        map.shift_remove(exclusive);
    }
}

/// Reads the types of a schema.
fn types(value: &Value, at: &str) -> Result<Value, GrammarError> {
    let is_known = |it: &Value| it.as_str().is_some_and(|it| TYPES.contains(&it));
    match value {
        Value::Array(types) if !types.is_empty() && types.iter().all(is_known) => Ok(value.clone()),
        one if is_known(one) => Ok(one.clone()),
        other => {
            let message =
                format!("must be one of {}, or an array of some of them, and is {other}", TYPES.join(", "));
            Err(refused(at, message.chars().take(300).collect::<String>()))
        }
    }
}

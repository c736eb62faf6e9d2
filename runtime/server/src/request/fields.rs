//! Strict reading of a JSON object field by field: every error names the path of its field, and an unknown
//! field is refused. What a reader asks for is also what the OpenAPI document says ([`super::described`]).

use super::described::{Object, described, recording};
use crate::error::{ApiError, wrong};
use crate::openapi::schema::{any, boolean, empty, integer as integers, only, text, unsupported, words};
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// A JSON object being read. `null` counts as absent, as in OpenAI's API.
pub(crate) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
    /// Ignored fields that are present.
    ignored: Vec<&'static str>,
    /// Record of the fields asked for, while they are described.
    asked: Option<Box<Object>>,
}

/// Values besides null that an unsupported field may have.
#[derive(Clone, Debug)]
pub(crate) enum Neutral {
    Nothing,
    /// An empty array or object.
    Empty,
    Only(Value),
    /// This number, written in any way.
    Number(f64),
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Neutral {
    fn is(&self, value: &Value) -> bool {
        match self {
            Neutral::Nothing => false,
            Neutral::Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => false,
            },
            Neutral::Only(neutral) => value == neutral,
            Neutral::Number(neutral) => value.as_f64() == Some(*neutral),
            Neutral::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }

    fn schema(&self) -> Value {
        match self {
            Neutral::Nothing => unsupported(),
            Neutral::Empty => empty(),
            Neutral::Only(neutral) => only(neutral.clone()),
            Neutral::Number(neutral) => only(*neutral),
            Neutral::Word(these) => words(these),
        }
    }
}

impl<'a> Fields<'a> {
    /// Reads `value` as an object; `path` is empty for the body itself.
    #[cfg_attr(test, track_caller)]
    pub(crate) fn new(path: &str, value: &'a Value) -> Result<Fields<'a>, ApiError> {
        #[cfg(test)]
        super::described::seen::reader();
        match value {
            Value::Object(map) => {
                let asked = recording().then(|| Box::new(Object::new(path)));
                Ok(Fields { path: path.to_owned(), map, known: Vec::new(), ignored: Vec::new(), asked })
            }
            other if path.is_empty() => {
                Err(ApiError::new_body(format!("the body must be a JSON object, and is {}", kind(other))))
            }
            other => Err(wrong_type(path, "an object", other)),
        }
    }

    /// A map that is no request's, such as what the command line says.
    pub(crate) fn outside(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { path: String::new(), map, known: Vec::new(), ignored: Vec::new(), asked: None }
    }

    /// The path of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Describes the next field's schema, where the way it is read does not.
    pub(crate) fn of(&mut self, schema: impl FnOnce() -> Value) -> &mut Self {
        if let Some(asked) = &mut self.asked {
            asked.next_is(schema());
        }
        self
    }

    /// Sets the description of the next field.
    pub(crate) fn about(&mut self, text: impl std::fmt::Display) -> &mut Self {
        if let Some(asked) = &mut self.asked {
            asked.next_about(text.to_string());
        }
        self
    }

    /// An object that was read so far has this field.
    pub(crate) fn holds(&mut self, name: &'static str) {
        if let Some(asked) = &mut self.asked {
            asked.holds(name);
        }
    }

    /// An object that was read so far has this field and no other.
    pub(crate) fn has_only(&mut self, name: &'static str) {
        if let Some(asked) = &mut self.asked {
            asked.has_only(name);
        }
    }

    /// An object that was read so far has none of these fields.
    pub(crate) fn lacks(&mut self, names: &[&'static str]) {
        if let Some(asked) = &mut self.asked {
            asked.lacks(names);
        }
    }

    /// This is a field of this object.
    fn asks(&mut self, name: &'static str, schema: impl FnOnce() -> Option<Value>) {
        self.known.push(name);
        if let Some(asked) = &mut self.asked {
            asked.add(name, schema());
        }
    }

    /// The value of a field, unless null, without recording it.
    pub(crate) fn given(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A field's value, unless absent or null: an object, unless [`Fields::of`] says what it is.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.asks(name, || None);
        self.given(name)
    }

    /// A field's value, which must be there.
    pub(crate) fn required(&mut self, name: &'static str) -> Result<&'a Value, ApiError> {
        let value = self.value(name);
        self.holds(name);
        value.ok_or_else(|| missing(&self.path(name)))
    }

    /// A string, which must be there.
    pub(crate) fn required_string(&mut self, name: &'static str) -> Result<&'a str, ApiError> {
        let text = self.string(name)?;
        self.holds(name);
        text.ok_or_else(|| missing(&self.path(name)))
    }

    /// A field that holds a string, unless absent or null.
    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<&'a str>, ApiError> {
        self.asks(name, || Some(text()));
        match self.given(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), "a string", other)),
        }
    }

    /// A string that names the kind of this object.
    pub(crate) fn tag(&mut self, name: &'static str) -> Result<Option<&'a str>, ApiError> {
        let found = self.string(name)?;
        if let Some((asked, found)) = self.asked.as_mut().zip(found) {
            asked.tagged(name, found);
        }
        Ok(found)
    }

    /// As [`Fields::tag`], of a field that must be there.
    pub(crate) fn required_tag(&mut self, name: &'static str) -> Result<&'a str, ApiError> {
        let found = self.tag(name)?;
        self.holds(name);
        found.ok_or_else(|| missing(&self.path(name)))
    }

    /// A field that holds a boolean, unless absent or null.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.asks(name, || Some(boolean()));
        match self.given(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong_type(&self.path(name), "a boolean", other)),
        }
    }

    /// An array, unless absent or null; [`Fields::of`] says of what.
    pub(crate) fn array(&mut self, name: &'static str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(&self.path(name), "an array", other)),
        }
    }

    /// An object, unless absent or null.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong_type(&self.path(name), "an object", other)),
        }
    }

    /// An integer within `range`; `1.0` is one.
    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        self.asks(name, || Some(integers(range.clone())));
        let Some(value) = self.given(name) else { return Ok(None) };
        integer(&self.path(name), value, range).map(Some)
    }

    /// A number in a range.
    pub(crate) fn number(&mut self, name: &'static str, of: Numbers) -> Result<Option<f32>, ApiError> {
        self.asks(name, || Some(of.schema()));
        let Some(value) = self.given(name) else { return Ok(None) };
        let path = self.path(name);
        let Value::Number(number) = value else { return Err(wrong_type(&path, "a number", value)) };
        // Numbers beyond 32 bits become infinite, which no range has; one below them is not 0 where 0 is none
        // of the range.
        let single = |number: f64| match number as f32 {
            0.0 if number > 0.0 && of.above => f32::MIN_POSITIVE,
            single => single,
        };
        match number.as_f64().map(single).filter(|number| of.contains(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong!(path, "must be {of}, and is {number}")),
        }
    }

    /// Fields that are ignored because they change no answer.
    pub(crate) fn harmless(&mut self, names: &[&'static str]) {
        for name in names {
            self.asks(name, || Some(any()));
        }
        let given = names.iter().filter(|name| self.given(name).is_some());
        self.ignored.extend(given.collect::<Vec<_>>());
    }

    /// A field that would change the answer: refused unless absent or `neutral`.
    pub(crate) fn refuse_unless(
        &mut self,
        name: &'static str,
        neutral: &Neutral,
        what: &str,
    ) -> Result<(), ApiError> {
        self.asks(name, || Some(neutral.schema()));
        match self.given(name) {
            Some(value) if !neutral.is(value) => Err(ApiError::unsupported(self.path(name), what)),
            _ => Ok(()),
        }
    }

    /// Refuses the first unknown field. Otherwise returns those present that are ignored.
    pub(crate) fn finish(mut self) -> Result<Vec<&'static str>, ApiError> {
        if let Some(asked) = self.asked.take() {
            asked.told();
        }
        match self.map.keys().find(|name| !self.known.contains(&name.as_str())) {
            None => Ok(self.ignored),
            Some(name) => {
                let path = self.path(name);
                let meant = meant(name, &self.known)
                    .map_or_else(String::new, |meant| format!("; did you mean `{}`?", self.path(meant)));
                let message = format!("`{path}` is not a field this server knows{meant}");
                Err(ApiError { code: "unknown_parameter", ..ApiError::field(path, message) })
            }
        }
    }
}

/// A range of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    low: f32,
    /// Whether `low` is excluded.
    above: bool,
    high: f32,
}

impl Numbers {
    /// From `low` to `high`, inclusive.
    pub(crate) const fn within(low: f32, high: f32) -> Numbers {
        Numbers { low, above: false, high }
    }

    /// Above `low` and up to `high`.
    pub(crate) const fn above(low: f32, high: f32) -> Numbers {
        Numbers { low, above: true, high }
    }

    pub(crate) fn schema(self) -> Value {
        let least = if self.above { "exclusiveMinimum" } else { "minimum" };
        json!({"type": "number", least: f64::from(self.low), "maximum": f64::from(self.high)})
    }

    fn contains(self, number: f32) -> bool {
        (self.low..=self.high).contains(&number) && !(self.above && number == self.low)
    }
}

impl std::fmt::Display for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Numbers { low, above, high } = self;
        match (above, *high == f32::MAX) {
            (true, true) => write!(f, "above {low} and at most 3.4e38"),
            (true, false) => write!(f, "above {low} and at most {high}"),
            (false, true) => write!(f, "at least {low} and at most 3.4e38"),
            (false, false) => write!(f, "from {low} to {high}"),
        }
    }
}

/// The known name that was probably meant.
pub(crate) fn meant(name: &str, known: &[&'static str]) -> Option<&'static str> {
    /// Longest name that is looked at.
    const LONGEST: usize = 40;
    if name.len() > LONGEST {
        return None;
    }
    let name = name.to_lowercase();
    let slips = |known: &&'static str| (strsim::damerau_levenshtein(&name, known), *known);
    let (slips, meant) = known.iter().map(slips).min_by_key(|(slips, _)| *slips)?;
    // Of a short name half of the letters make another.
    (slips <= 2 && slips * 3 <= meant.len()).then_some(meant)
}

/// The error for a word that a field does not take.
pub(crate) fn wrong_word(path: &str, words: &[&str], found: Option<&str>) -> ApiError {
    let words = match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    };
    match found {
        Some(found) => wrong!(path, "must be {words}, and is {found:?}"),
        None => wrong!(path, "is required: {words}"),
    }
}

/// The error for invalid JSON: the library's message, or ours where it has none.
pub(crate) fn no_json(text: &[u8], error: &serde_json::Error) -> String {
    if text.trim_ascii().is_empty() {
        return "is empty, and must be JSON".to_owned();
    }
    let said = error.to_string();
    match said.strip_prefix("recursion limit exceeded") {
        Some(at) => format!("is nested deeper than the {DEEPEST} levels that are read here{at}"),
        None => format!("is not valid JSON: {said}"),
    }
}

/// Most levels of arrays and objects in JSON that is read; the library's own bound.
const DEEPEST: usize = 127;

/// An integer within `range`.
pub(crate) fn integer(path: &str, value: &Value, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let Value::Number(number) = value else { return Err(wrong_type(path, "an integer", value)) };
    // As JSON schemas have it, 1.0 is an integer; larger floats are not exact integers.
    let exact = (1u64 << f64::MANTISSA_DIGITS) as f64;
    let written = match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() != 0.0 => return Err(wrong_type(path, "an integer", value)),
        Some(float) => Some(float as i64).filter(|_| float.abs() <= exact),
        None => number.as_i64(),
    };
    // An integer that does not fit an i64 is above its range.
    match written.filter(|integer| range.contains(integer)) {
        Some(integer) => Ok(integer),
        None => {
            let (low, high) = range.into_inner();
            let expected = match (low, high) {
                (i64::MIN, i64::MAX) => "fit 64 bits".to_owned(),
                (low, i64::MAX) => format!("be at least {low}"),
                (low, high) => format!("be between {low} and {high}"),
            };
            Err(wrong!(path, "must {expected}, and is {number}"))
        }
    }
}

/// The error for a field that is not there and must be.
pub(crate) fn missing(path: &str) -> ApiError {
    ApiError::at(path, "is required")
}

/// The schema of what [`text_of`] reads.
pub(crate) fn text_schema(types: &[&str], harmless: &[&'static str]) -> Value {
    let sample = |kind: &&str| json!({"type": kind, "text": ""});
    described("", types.iter().map(sample), |part| text_of("", part, types, harmless, "").map(drop))
}

/// The text of an object with a `type` among these and a `text`; `what` is what such objects are called.
pub(crate) fn text_of<'a>(
    path: &str,
    value: &'a Value,
    types: &[&str],
    harmless: &[&'static str],
    what: &str,
) -> Result<&'a str, ApiError> {
    let mut fields = Fields::new(path, value)?;
    let found = fields.required_tag("type")?;
    if !types.contains(&found) {
        return Err(ApiError::unsupported(path, &format!("{what} of type {found:?}")));
    }
    let text = fields.required_string("text")?;
    fields.harmless(harmless);
    fields.finish()?;
    Ok(text)
}

/// The error for a value of another type than `expected`.
pub(crate) fn wrong_type(path: &str, expected: &str, found: &Value) -> ApiError {
    ApiError { code: "invalid_type", ..wrong!(path, "must be {expected}, and is {}", kind(found)) }
}

/// A value's type in words; numbers and booleans are quoted, since they are short.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error_of(result: Result<impl std::fmt::Debug, ApiError>) -> (Option<String>, String) {
        let error = result.expect_err("refused");
        (error.param, error.message)
    }

    #[test]
    fn types_are_strict_and_paths_named() {
        let body = json!({"a": 1.5, "b": true, "c": "x", "d": 1e300, "e": -1, "f": null, "g": 18446744073709551615u64, "h": 7.0, "i": 1e300, "j": 5e-324});
        let mut fields = Fields::new("outer", &body).expect("an object");
        for name in ["a", "b", "c"] {
            let (param, message) = error_of(fields.integer(name, 0..=10));
            assert_eq!(param, Some(format!("outer.{name}")));
            assert!(message.contains("must be an integer"), "{message}");
        }
        for (of, words) in [
            (Numbers::within(0.0, 2.0), "must be from 0 to 2, and is 1e+300"),
            (Numbers::above(0.0, 1.0), "must be above 0 and at most 1, and is 1e+300"),
            (Numbers::within(0.0, f32::MAX), "must be at least 0 and at most 3.4e38, and is 1e+300"),
        ] {
            let (_, message) = error_of(fields.number("d", of));
            assert!(message.contains(words), "{message}");
        }
        assert!(error_of(fields.number("e", Numbers::within(-0.5, 1.0))).1.contains("from -0.5 to 1"));
        assert_eq!(fields.number("e", Numbers::within(-1.0, 1.0)).expect("it is the least"), Some(-1.0));
        assert!(fields.number("e", Numbers::above(-1.0, 1.0)).is_err());
        let tiny = fields.number("j", Numbers::above(0.0, 1.0)).expect("it is above 0");
        assert_eq!(tiny, Some(f32::MIN_POSITIVE));
        assert!(error_of(fields.integer("e", 0..=10)).1.contains("between 0 and 10, and is -1"));
        assert_eq!(fields.integer("f", 0..=10).expect("null is absent"), None);
        assert!(error_of(fields.integer("g", i64::MIN..=i64::MAX)).1.contains("64 bits"));
        assert_eq!(fields.integer("h", 0..=10).expect("a whole number"), Some(7));
        assert!(error_of(fields.integer("i", i64::MIN..=i64::MAX)).1.contains("64 bits"));
        assert!(error_of(fields.string("b")).1.contains("the boolean true"));
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn unknown_fields_are_named() {
        let body = json!({"known": 1, "temprature": 2});
        let mut fields = Fields::new("", &body).expect("an object");
        fields.harmless(&["known", "absent"]);
        let (_, message) = error_of(fields.finish());
        assert!(message.contains("`temprature`") && !message.contains("mean"), "{message}");
        let mut fields = Fields::new("outer", &body).expect("an object");
        fields.harmless(&["known", "top_p", "temperature"]);
        let (_, message) = error_of(fields.finish());
        assert!(message.ends_with("did you mean `outer.temperature`?"), "{message}");
        assert!(Fields::new("", &json!([1])).is_err());
        let body = json!({"known": 1, "nothing": null});
        let mut fields = Fields::new("", &body).expect("an object");
        fields.harmless(&["known", "absent", "nothing"]);
        assert_eq!(fields.finish().expect("all are known"), ["known"]);
    }

    #[test]
    fn words_are_listed_and_what_is_missing_is_required() {
        let of = |words: &[&str], found| wrong_word("a.b", words, found).message;
        assert_eq!(of(&["x", "y", "z"], Some("w")), "`a.b` must be x, y or z, and is \"w\"");
        assert_eq!(of(&["x", "y"], None), "`a.b` is required: x or y");
        assert_eq!(of(&["x"], None), "`a.b` is required: x");
    }

    #[test]
    fn json_is_read_so_deep_and_no_deeper() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let read = |text: &str| {
            serde_json::from_str::<Value>(text).map(drop).map_err(|error| no_json(text.as_bytes(), &error))
        };
        read(&nested(DEEPEST)).expect("it is read");
        let message = read(&nested(DEEPEST + 1)).expect_err("too deep");
        assert!(
            message.contains("nested deeper than the 127 levels") && message.contains("column"),
            "{message}"
        );
        assert!(read(" \n").expect_err("empty").contains("is empty"));
        assert!(read("{").expect_err("cut").contains("is not valid JSON: EOF"));
    }
}

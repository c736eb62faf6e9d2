//! Patterns of text with fixed, free and JSON parts: the shape of tool calls in any format.

use crate::bounds::{self, Size};
use crate::error::GrammarError;
use crate::schema::Schema;
use crate::source::{MAX_BYTES, Source};
use serde_json::Value;

/// A text described by parts.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Exactly this text.
    Text(String),
    /// This control token.
    Token(u32),
    /// Text up to its end.
    Until(Body, End),
    /// JSON that is valid under a schema.
    Json(Schema),
    /// Any text that a source allows.
    Source(Source),
    /// These in sequence.
    All(Vec<Pattern>),
    /// One of these.
    OneOf(Vec<Pattern>),
    /// This or the empty text.
    Maybe(Box<Pattern>),
    /// Any number of these.
    Any(Box<Pattern>),
    /// One or more of these, separated by this text.
    Some(Box<Pattern>, String),
}

/// A text up to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Text with this least and most number of characters.
    Free(usize, Option<usize>),
    /// A full match of a regular expression.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
}

/// The end of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// This text, which does not occur in the body.
    Text(String),
    /// This text, which does not occur in the body; a line end may precede it.
    Line(String),
    /// This control token, whose name does not occur in the body either.
    Token(u32, String),
}

impl Pattern {
    /// Matches exactly this text.
    pub fn text(text: impl Into<String>) -> Pattern {
        Pattern::Text(text.into())
    }

    /// The estimated cost of compiling it. Schemas in it were measured when they were read.
    pub(crate) fn size(&self) -> Result<Size, GrammarError> {
        Ok(match self {
            Pattern::Text(_) | Pattern::Token(_) => Size::Small,
            Pattern::Until(Body::Free(_, None) | Body::Choice(_), _) => Size::Small,
            Pattern::Until(Body::Free(_, Some(most)), _) if *most <= 1000 => Size::Small,
            Pattern::Until(Body::Free(..), _) => Size::Unknown,
            Pattern::Until(Body::Regex(regex), _) => bounds::regex(regex)?.size(),
            Pattern::Json(schema) => bounds::schema(schema.value())?,
            Pattern::Source(source) => bounds::source(source)?,
            Pattern::All(parts) | Pattern::OneOf(parts) => {
                // Many small ones together are not small.
                let mut size = if parts.len() <= 64 { Size::Small } else { Size::Unknown };
                for part in parts {
                    size = size.max(part.size()?);
                }
                size
            }
            Pattern::Maybe(part) | Pattern::Any(part) | Pattern::Some(part, _) => part.size()?,
        })
    }

    /// The pattern in llguidance's variant of Lark.
    ///
    /// # Errors
    /// When a source in it is invalid, or the result is too long.
    pub(crate) fn lark(&self) -> Result<String, GrammarError> {
        let mut writer = Writer::default();
        let start = writer.rule(self)?;
        let lark = format!("start: {start}\n{}", writer.definitions);
        match lark.len() {
            bytes if bytes > 2 * MAX_BYTES => {
                Err(GrammarError::new(format!("has {bytes} bytes; at most {}", 2 * MAX_BYTES)))
            }
            _ => Ok(lark),
        }
    }
}

/// Rules and terminals besides the first rule.
#[derive(Default)]
struct Writer {
    definitions: String,
    count: usize,
    /// Rules of schemas.
    schemas: Vec<(Schema, String)>,
}

/// Any text, as a regular expression.
const ANYTHING: &str = "/(?s:.*)/";

impl Writer {
    fn define(&mut self, prefix: &str, what: &str) -> String {
        let name = format!("{prefix}{}", self.count);
        self.count += 1;
        self.definitions.push_str(&format!("{name}: {what}\n"));
        name
    }

    /// The rule of a schema, shared by all its occurrences, because a call may be allowed in several places.
    fn json(&mut self, schema: &Schema) -> String {
        if let Some((_, name)) = self.schemas.iter().find(|(known, _)| known == schema) {
            return name.clone();
        }
        let name = self.define("r", &format!("%json {}", schema.prepared()));
        self.schemas.push((schema.clone(), name.clone()));
        name
    }

    fn rule(&mut self, pattern: &Pattern) -> Result<String, GrammarError> {
        Ok(match pattern {
            Pattern::Text(text) => quoted(text),
            Pattern::Token(id) => format!("<[{id}]>"),
            Pattern::Until(body, end) => self.until(body, end),
            Pattern::Json(schema) => self.json(schema),
            Pattern::Source(Source::JsonObject) => format!("%json {}", Schema::any_object().prepared()),
            Pattern::Source(Source::JsonSchema(schema)) => {
                format!("%json {}", Schema::new(schema)?.prepared())
            }
            Pattern::Source(Source::Regex(regex)) => self.define("T", &expression(regex)),
            Pattern::Source(Source::Lark(lark)) => format!("%lark {{\n{lark}\n}}"),
            Pattern::Source(Source::Choice(texts)) => alternatives(texts.iter().map(|text| quoted(text))),
            Pattern::All(parts) if parts.is_empty() => quoted(""),
            Pattern::All(parts) => {
                let parts = parts.iter().map(|part| self.rule(part)).collect::<Result<Vec<_>, _>>()?;
                format!("( {} )", parts.join(" "))
            }
            Pattern::OneOf(parts) => {
                let parts = parts.iter().map(|part| self.rule(part)).collect::<Result<Vec<_>, _>>()?;
                alternatives(parts.into_iter())
            }
            Pattern::Maybe(part) => format!("( {} )?", self.rule(part)?),
            Pattern::Any(part) => format!("( {} )*", self.rule(part)?),
            Pattern::Some(part, between) => {
                let part = self.rule(part)?;
                let part = self.define("r", &part);
                let between = if between.is_empty() { String::new() } else { quoted(between) };
                format!("{part} ( {between} {part} )*")
            }
        })
    }

    /// A text and its end as one terminal, so that the end is not sought where the text could continue as
    /// well.
    fn until(&mut self, body: &Body, end: &End) -> String {
        let text = match body {
            Body::Free(0, None) => ANYTHING.to_owned(),
            Body::Free(least, None) => format!("/(?s:.){{{least},}}/"),
            Body::Free(least, Some(most)) => format!("/(?s:.){{{least},{most}}}/"),
            Body::Regex(regex) => expression(regex),
            Body::Choice(texts) => alternatives(texts.iter().map(|text| quoted(text))),
        };
        let (line, end) = match end {
            End::Token(id, name) => {
                let name = quoted(name);
                let text = self.define("T", &format!("{text} & ~( {ANYTHING} {name} {ANYTHING} )"));
                return format!("{text} <[{id}]>");
            }
            End::Text(end) => ("", quoted(end)),
            End::Line(end) => ("\"\\n\"? ", quoted(end)),
        };
        self.define("T", &format!("( {text} & ~( {ANYTHING} {end} {ANYTHING} ) ) {line}{end}"))
    }
}

/// A text as a JSON string, which is also a Lark string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn alternatives(parts: impl Iterator<Item = String>) -> String {
    format!("( {} )", parts.collect::<Vec<_>>().join(" | "))
}

/// A regular expression between Lark's slashes, with slashes in it escaped.
fn expression(regex: &str) -> String {
    let (mut written, mut escaped) = (String::from("/(?:"), false);
    for character in regex.chars() {
        match character {
            '/' if !escaped => written.push_str("\\/"),
            '\n' => written.push_str("\\n"),
            other => written.push(other),
        }
        escaped = character == '\\' && !escaped;
    }
    written.push_str(")/");
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pattern_is_small_if_all_its_parts_are() {
        let until = |body| Pattern::Until(body, End::Text("b".to_owned()));
        let small = || Pattern::text("a");
        let large = || Pattern::Source(Source::Regex("a{5000}".to_owned()));
        let schema = |schema: Value| Pattern::Json(Schema::new(&schema).expect("a schema"));
        for (pattern, size) in [
            (small(), Size::Small),
            (Pattern::Token(5), Size::Small),
            (until(Body::Free(9, None)), Size::Small),
            (until(Body::Choice(vec!["a".to_owned()])), Size::Small),
            (until(Body::Free(9, Some(1000))), Size::Small),
            (until(Body::Free(9, Some(1001))), Size::Unknown),
            (until(Body::Regex("a{1000}".to_owned())), Size::Small),
            (until(Body::Regex("a{1001}".to_owned())), Size::Unknown),
            (schema(json!({"type": "string"})), Size::Small),
            (schema(json!({"type": "string", "maxLength": 5000})), Size::Unknown),
            (Pattern::Source(Source::JsonObject), Size::Small),
            (large(), Size::Unknown),
            (Pattern::All(vec![small(); 64]), Size::Small),
            (Pattern::All(vec![small(); 65]), Size::Unknown),
            (Pattern::OneOf(vec![small(); 64]), Size::Small),
            (Pattern::OneOf(vec![small(); 65]), Size::Unknown),
            (Pattern::All(vec![small(), large(), small()]), Size::Unknown),
            (Pattern::OneOf(vec![large(), small()]), Size::Unknown),
            (Pattern::Maybe(Box::new(small())), Size::Small),
            (Pattern::Maybe(Box::new(large())), Size::Unknown),
            (Pattern::Any(Box::new(large())), Size::Unknown),
            (Pattern::Some(Box::new(large()), String::new()), Size::Unknown),
        ] {
            assert_eq!(pattern.size(), Ok(size), "{pattern:?}");
        }
    }

    #[test]
    fn a_schema_that_occurs_twice_is_written_once() {
        let of = |kind: &str| Pattern::Json(Schema::new(&json!({"type": kind})).expect("a schema"));
        let lark = Pattern::All(vec![of("null"), of("boolean"), of("null")]).lark().expect("it is short");
        assert!(lark.starts_with("start: ( r0 r1 r0 )\nr0: %json "), "{lark}");
        assert_eq!(lark.matches("%json").count(), 2, "{lark}");
    }

    #[test]
    fn patterns_are_written_with_terminals_that_end_where_they_must() {
        let (a, b) = (|| Pattern::text("a"), || Pattern::text("b\"\n"));
        let texts = || vec!["a".to_owned(), "b|".to_owned()];
        let until = |body, end: fn(String) -> End| Pattern::Until(body, end("e".to_owned()));
        let regex = |regex: &str| Pattern::Source(Source::Regex(regex.to_owned()));
        let not = |end: &str| format!("~( /(?s:.*)/ {end} /(?s:.*)/ )");
        let terminal =
            |text: &str, line: &str| format!("start: T0\nT0: ( {text} & {} ) {line}\"e\"\n", not("\"e\""));
        for (pattern, lark) in [
            (b(), "start: \"b\\\"\\n\"\n".to_owned()),
            (Pattern::Token(7), "start: <[7]>\n".to_owned()),
            (Pattern::All(vec![]), "start: \"\"\n".to_owned()),
            (Pattern::All(vec![a(), Pattern::Token(7)]), "start: ( \"a\" <[7]> )\n".to_owned()),
            (Pattern::OneOf(vec![a(), Pattern::Token(7)]), "start: ( \"a\" | <[7]> )\n".to_owned()),
            (Pattern::Maybe(Box::new(a())), "start: ( \"a\" )?\n".to_owned()),
            (Pattern::Any(Box::new(a())), "start: ( \"a\" )*\n".to_owned()),
            (Pattern::Some(Box::new(a()), ",".to_owned()), "start: r0 ( \",\" r0 )*\nr0: \"a\"\n".to_owned()),
            (Pattern::Some(Box::new(a()), String::new()), "start: r0 (  r0 )*\nr0: \"a\"\n".to_owned()),
            (Pattern::Source(Source::Choice(texts())), "start: ( \"a\" | \"b|\" )\n".to_owned()),
            // Slashes are escaped unless they are already.
            (regex("a/b"), "start: T0\nT0: /(?:a\\/b)/\n".to_owned()),
            (regex("a\\/b"), "start: T0\nT0: /(?:a\\/b)/\n".to_owned()),
            (regex("a\\\\/b"), "start: T0\nT0: /(?:a\\\\\\/b)/\n".to_owned()),
            (regex("\\\\\\/\n"), "start: T0\nT0: /(?:\\\\\\/\\n)/\n".to_owned()),
            (until(Body::Free(0, None), End::Text), terminal("/(?s:.*)/", "")),
            (until(Body::Free(2, None), End::Text), terminal("/(?s:.){2,}/", "")),
            (until(Body::Free(0, Some(5)), End::Text), terminal("/(?s:.){0,5}/", "")),
            (until(Body::Regex("a/".to_owned()), End::Line), terminal("/(?:a\\/)/", "\"\\n\"? ")),
            (until(Body::Choice(texts()), End::Line), terminal("( \"a\" | \"b|\" )", "\"\\n\"? ")),
            (
                until(Body::Choice(texts()), |name| End::Token(7, name)),
                format!("start: T0 <[7]>\nT0: ( \"a\" | \"b|\" ) & {}\n", not("\"e\"")),
            ),
        ] {
            assert_eq!(pattern.lark(), Ok(lark), "{pattern:?}");
        }
    }

    #[test]
    fn a_pattern_is_at_most_twice_as_long_as_a_source() {
        let texts = |bytes: usize| Pattern::text("a".repeat(bytes)).lark().map(|lark| lark.len());
        // `start: `, two quotes and the line end.
        assert_eq!(texts((1 << 20) - 10), Ok(1 << 20));
        assert!(texts((1 << 20) - 9).is_err());
    }
}

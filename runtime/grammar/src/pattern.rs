//! Patterns of text with fixed, free and JSON parts: the shape of tool calls in any format.

use crate::bounds::{self, Size};
use crate::error::GrammarError;
use crate::schema::Schema;
use crate::source::{MAX_BYTES, Source};
use serde_json::Value;

/// A text in parts.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// This text.
    Text(String),
    /// This control token.
    Token(u32),
    /// Text up to what ends it.
    Until(Body, End),
    /// JSON that is valid under a schema.
    Json(Schema),
    /// A source of a constraint.
    Source(Source),
    /// One behind the other.
    All(Vec<Pattern>),
    /// One of these.
    OneOf(Vec<Pattern>),
    /// This or nothing.
    Maybe(Box<Pattern>),
    /// Any number of these.
    Any(Box<Pattern>),
    /// One of these or more, with this text between two.
    Some(Box<Pattern>, String),
}

/// A text between two others.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Of so many characters: at least, at most.
    Free(usize, Option<usize>),
    /// That a regular expression matches, all of it.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
}

/// What ends a text.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// This text, which is not within it.
    Text(String),
    /// This text, which is not within it; a line may end before.
    Line(String),
    /// This control token, whose name is not within it either.
    Token(u32, String),
}

impl Pattern {
    /// A text.
    pub fn text(text: impl Into<String>) -> Pattern {
        Pattern::Text(text.into())
    }

    /// What is known of the work to compile it. Schemas within were looked at when they were read.
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
                // Many small ones are not small together.
                let mut size = if parts.len() <= 64 { Size::Small } else { Size::Unknown };
                for part in parts {
                    size = size.max(part.size()?);
                }
                size
            }
            Pattern::Maybe(part) | Pattern::Any(part) | Pattern::Some(part, _) => part.size()?,
        })
    }

    /// In llguidance's variant of Lark's notation.
    ///
    /// # Errors
    /// When a source in it makes no sense, or all of it is too long.
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

/// Rules and terminals beside the first rule.
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

    /// One rule of all that have this schema: a call may stand in several places.
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

    /// A text and its end as one terminal: the end is not looked for where the text could go on as well.
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

/// JSON's way to write a text is Lark's.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn alternatives(parts: impl Iterator<Item = String>) -> String {
    format!("( {} )", parts.collect::<Vec<_>>().join(" | "))
}

/// A regular expression in Lark's slashes, which it may hold itself.
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

//! Bounds of Lark grammars.

use super::{
    COMBINATIONS, MAX_COMBINATIONS, MAX_LARK_LEVELS, MAX_LARK_PARTS, MAX_REPEATS, Size, at_most, regex,
    schema,
};
use crate::error::GrammarError;
use serde_json::{Deserializer, Value};

/// Measures a grammar. Invalid grammars are left to the library to reject: this reader continues as well as
/// it can.
pub(crate) fn lark(text: &str) -> Result<Size, GrammarError> {
    let mut reader = Reader { text, at: 0, parts: 0, levels: 0, deepest: 0, nested: 0, matched: 1, joins: 0 };
    while reader.at < text.len() {
        reader.step()?;
    }
    reader.define();
    let (levels, parts) = (reader.levels, reader.parts);
    at_most(String::new, "levels of rules, terminals and brackets within them", levels, MAX_LARK_LEVELS)?;
    at_most(String::new, "names, texts and expressions", parts, MAX_LARK_PARTS)?;
    // The parts of an intersection are not tracked: each is taken to combine all parts.
    let combinations = reader.matched.saturating_pow(reader.joins + 1);
    if reader.joins > 0 {
        at_most(String::new, COMBINATIONS, combinations, MAX_COMBINATIONS)?;
    }
    Ok(Size::Unknown)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    parts: usize,
    /// Levels of all definitions before this one.
    levels: usize,
    /// Levels of this definition.
    deepest: usize,
    nested: usize,
    /// Parts of texts and expressions.
    matched: u64,
    /// Intersections and negations.
    joins: u32,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Handles the next element.
    fn step(&mut self) -> Result<(), GrammarError> {
        let Some(first) = self.rest().chars().next() else { return Ok(()) };
        match first {
            '"' => {
                self.at += 1;
                self.until('"');
                self.parts += 1;
                self.matched += 1;
            }
            '/' if self.rest().starts_with("//") => self.line(),
            '/' => {
                let from = self.at + 1;
                self.at = from;
                self.until('/');
                let found = self.text.get(from..self.at.saturating_sub(1)).unwrap_or_default();
                self.matched += regex(found)?.parts as u64;
                self.parts += 1;
            }
            '%' if ["%json", "%llguidance", "%regex"].iter().any(|it| self.rest().starts_with(it)) => {
                let is_schema = self.rest().starts_with("%json");
                let name = self.rest()[1..]
                    .find(|it: char| !it.is_ascii_alphabetic())
                    .map_or(self.rest().len(), |it| it + 1);
                self.at += name;
                let mut values = Deserializer::from_str(self.rest()).into_iter::<Value>();
                let value = values.next();
                let read = values.byte_offset();
                if let Some(Ok(value)) = value {
                    self.at += read;
                    if is_schema {
                        schema(&value)?;
                    }
                }
                self.parts += 1;
            }
            '&' => {
                self.at += 1;
                self.joins += 1;
            }
            // A negation nests within another one, and a repetition's count follows the repeated part.
            '~' => {
                self.at += 1;
                let counts =
                    self.rest().trim_start_matches([' ', '\t']).starts_with(|it: char| it.is_ascii_digit());
                self.joins += u32::from(!counts);
                self.nested += 1;
                self.deepest = self.deepest.max(self.nested);
                self.count()?;
            }
            '(' | '[' | '{' => {
                self.at += 1;
                self.nested += 1;
                self.deepest = self.deepest.max(self.nested);
                if first == '{' {
                    self.count()?;
                }
            }
            ')' | ']' | '}' => {
                self.at += 1;
                self.nested = self.nested.saturating_sub(1);
            }
            ':' => {
                self.at += 1;
                self.define();
                self.levels += 1;
            }
            it if it.is_alphanumeric() || it == '_' => {
                let length = self.rest().find(|it: char| !it.is_alphanumeric() && it != '_');
                self.at += length.unwrap_or(self.rest().len());
                self.parts += 1;
            }
            other => self.at += other.len_utf8(),
        }
        Ok(())
    }

    /// Ends a definition and begins another.
    fn define(&mut self) {
        self.levels += self.deepest;
        (self.deepest, self.nested) = (0, 0);
    }

    /// Skips past the next unescaped `end`.
    fn until(&mut self, end: char) {
        let mut escaped = false;
        for (at, character) in self.text[self.at..].char_indices() {
            if character == end && !escaped {
                self.at += at + character.len_utf8();
                return;
            }
            escaped = character == '\\' && !escaped;
        }
        self.at = self.text.len();
    }

    /// Skips to the end of the line.
    fn line(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// Reads the counts of a repetition, if there are any.
    fn count(&mut self) -> Result<(), GrammarError> {
        loop {
            let length = self.rest().find(|it: char| !" \t.,".contains(it)).unwrap_or(0);
            self.at += length;
            let digits = self.rest().find(|it: char| !it.is_ascii_digit()).unwrap_or(self.rest().len());
            if digits == 0 {
                return Ok(());
            }
            let times = self.rest()[..digits].parse().unwrap_or(u64::MAX);
            at_most(String::new, "repetitions of one part", times, MAX_REPEATS)?;
            self.at += digits;
        }
    }
}

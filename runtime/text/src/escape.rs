//! Keeps control tokens out of user text.
//!
//! A chat template renders one string. The template's own markers in it (`<|im_start|>`) must become control
//! tokens; the same characters inside a message must not. So messages are escaped before rendering: the first
//! character of every control token spelled out in them is replaced by a sequence of noncharacters (U+FDD0..,
//! which Unicode reserves for a program's internal use), and restored after the template's own markers have
//! been found. Noncharacters in a message are escaped too, so nothing is lost.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Begins an escape, followed by one of the 16 characters from [`DIGIT`] on for each hexadecimal digit, then
/// [`CLOSE`].
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';
const DIGIT: u32 = 0xFDD2;

fn is_escape(character: char) -> bool {
    ('\u{FDD0}'..='\u{FDEF}').contains(&character)
}

/// Finds control tokens spelled out in text.
#[derive(Debug)]
pub(crate) struct Controls {
    /// Every occurrence, including overlapping ones.
    all: AhoCorasick,
    /// Leftmost-longest matches, as the tokenizer finds them.
    leftmost: AhoCorasick,
    ids: Vec<u32>,
}

/// A stretch of a rendered template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stretch<'a> {
    /// A control token.
    Control(u32),
    /// Text, with escapes resolved.
    Text(Cow<'a, str>),
}

impl Controls {
    pub(crate) fn new(controls: &[(String, u32)]) -> Result<Controls, aho_corasick::BuildError> {
        let spellings: Vec<&str> = controls.iter().map(|(spelling, _)| spelling.as_str()).collect();
        Ok(Controls {
            all: AhoCorasick::new(&spellings)?,
            leftmost: AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&spellings)?,
            ids: controls.iter().map(|(_, id)| *id).collect(),
        })
    }

    /// The text with every control token in it broken up; `None` if there is none.
    fn escape(&self, text: &str) -> Option<String> {
        let mut places: Vec<usize> =
            self.all.find_overlapping_iter(text).map(|found| found.start()).collect();
        places.extend(text.char_indices().filter(|(_, character)| is_escape(*character)).map(|(at, _)| at));
        if places.is_empty() {
            return None;
        }
        places.sort_unstable();
        places.dedup();
        let mut escaped = String::with_capacity(text.len() + 16 * places.len());
        let mut done = 0;
        for place in places {
            escaped += &text[done..place];
            let Some(character) = text[place..].chars().next() else { break };
            escaped.push(OPEN);
            for digit in format!("{:x}", u32::from(character)).chars().filter_map(|digit| digit.to_digit(16))
            {
                escaped.extend(char::from_u32(DIGIT + digit));
            }
            escaped.push(CLOSE);
            done = place + character.len_utf8();
        }
        escaped += &text[done..];
        Some(escaped)
    }

    /// Escapes every string in a value, including keys. Sets `found` if there was anything to escape.
    pub(crate) fn escape_value(&self, value: &Value, found: &mut bool) -> Value {
        match value {
            Value::String(text) => match self.escape(text) {
                Some(escaped) => {
                    *found = true;
                    Value::String(escaped)
                }
                None => value.clone(),
            },
            Value::Array(values) => {
                Value::Array(values.iter().map(|value| self.escape_value(value, found)).collect())
            }
            Value::Object(map) => Value::Object(self.escape_map(map, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    pub(crate) fn escape_map(&self, map: &Map<String, Value>, found: &mut bool) -> Map<String, Value> {
        map.iter()
            .map(|(key, value)| {
                let key = self.escape(key).inspect(|_| *found = true).unwrap_or_else(|| key.clone());
                (key, self.escape_value(value, found))
            })
            .collect()
    }

    /// Splits a rendered template at its control tokens.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<Stretch<'a>> {
        let mut stretches = Vec::new();
        let mut done = 0;
        for found in self.leftmost.find_iter(text) {
            if done < found.start() {
                stretches.push(Stretch::Text(unescape(&text[done..found.start()])));
            }
            stretches.push(Stretch::Control(self.ids[found.pattern().as_usize()]));
            done = found.end();
        }
        if done < text.len() {
            stretches.push(Stretch::Text(unescape(&text[done..])));
        }
        stretches
    }
}

fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains(OPEN) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        plain += before;
        // A template may have cut an escape in two; the remains are dropped.
        let end =
            after.find(|character: char| !is_escape(character) || character == CLOSE).unwrap_or(after.len());
        let code = after[..end]
            .chars()
            .try_fold(0u32, |code, digit| {
                let digit = u32::from(digit).checked_sub(DIGIT).filter(|&digit| digit < 16)?;
                code.checked_mul(16)?.checked_add(digit)
            })
            .and_then(char::from_u32);
        plain.extend(code.filter(|_| after[end..].starts_with(CLOSE)));
        rest = after[end..].strip_prefix(CLOSE).unwrap_or(&after[end..]);
    }
    plain += rest;
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn controls() -> Controls {
        let spellings = ["<|a|>", "<|a", "|><b>", "#", "ü|"];
        Controls::new(&spellings.iter().zip(1..).map(|(&s, id)| (s.to_owned(), id)).collect::<Vec<_>>())
            .unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// An escaped text contains no control token, and is restored exactly.
        #[test]
        fn nothing_gets_through_and_nothing_is_lost(text in "[<|a>b#üx\u{FDD0}\u{FDD1}\u{FDD3}\u{FDEF}]{0,30}") {
            let controls = controls();
            let escaped = controls.escape(&text).unwrap_or_else(|| text.clone());
            let stretches = controls.split(&escaped);
            let expected = if text.is_empty() { vec![] } else { vec![Stretch::Text(Cow::Owned(text))] };
            prop_assert_eq!(stretches, expected);
        }
    }

    #[test]
    fn the_templates_own_markers_are_found() {
        let controls = controls();
        let message = controls.escape("say <|a|> #1").unwrap();
        let rendered = format!("<|a|>{message}#");
        assert_eq!(
            controls.split(&rendered),
            [Stretch::Control(1), Stretch::Text("say <|a|> #1".into()), Stretch::Control(4)]
        );
    }
}

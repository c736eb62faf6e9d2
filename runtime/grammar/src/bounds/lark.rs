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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, texts and expressions; levels; parts of texts and expressions; intersections and negations.
    fn counts(text: &str) -> (usize, usize, u64, u32) {
        let mut reader =
            Reader { text, at: 0, parts: 0, levels: 0, deepest: 0, nested: 0, matched: 0, joins: 0 };
        while reader.at < text.len() {
            reader.step().unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        reader.define();
        (reader.parts, reader.levels, reader.matched, reader.joins)
    }

    #[test]
    fn names_texts_and_expressions_are_parts() {
        for (text, parts, matched) in [
            ("", 0, 0),
            ("start: a", 2, 0),
            ("start: \u{e4}_1 b2 _", 4, 0),
            ("a: \"b: (\" c", 3, 1),
            ("a: \"b\\\"c\" d", 3, 1),
            ("a: \"b\\\\\" c", 3, 1),
            ("a: \"\u{e4}\" c", 3, 1),
            ("a: \"b c d", 2, 1),
            ("a: /bc:d/ e", 3, 4),
            ("a: /b\\/c/ d", 3, 3),
            ("a: /bcd", 2, 2),
            ("a: // b c (\nd", 2, 0),
            ("a: b // c", 2, 0),
            ("a: %json {\"type\": [\"b\"]} c", 3, 0),
            ("a: %json{\"type\": [\"b\"]}c", 3, 0),
            ("a: %llguidance {\"b\": \"c\"} d", 3, 0),
            ("a: %regex {\"b\": 5} c", 3, 0),
            ("a: %json b c", 4, 0),
            ("%import common.INT", 3, 0),
            ("%ignore \"b\" c", 3, 1),
            ("%json", 1, 0),
            ("a: <[5-7]> | \u{20ac}b", 4, 0),
        ] {
            let found = counts(text);
            assert_eq!((found.0, found.2), (parts, matched), "{text}");
        }
    }

    #[test]
    fn definitions_and_the_brackets_within_them_are_levels() {
        for (text, levels) in [
            ("a: b", 1),
            ("a: b\nc: d", 2),
            ("a: (b)", 2),
            ("a: (b) (c)", 2),
            ("a: (b [c {d}])", 4),
            ("a: ((b) c) (d)", 3),
            ("a: (((b)))\nc: (d)\ne: f", 7),
            ("a: )) (b)", 2),
            ("a: \"(((\" /((a))/", 1),
            ("a: ~b", 2),
            ("a: ~~b", 3),
            ("a: (~b)", 3),
            ("a: b~3", 2),
            ("a: b~3 c", 2),
            ("a: b{2} (c)", 2),
        ] {
            assert_eq!(counts(text).1, levels, "{text}");
        }
    }

    #[test]
    fn intersections_and_negations_join_and_repetitions_do_not() {
        for (text, joins) in [
            ("a: b", 0),
            ("a: b & c", 1),
            ("a: b & c & d", 2),
            ("a: ~b", 1),
            ("a: b & ~c", 2),
            ("a: ~ \t(b)", 1),
            ("a: b~3", 0),
            ("a: b ~ \t3..5", 0),
            ("a: \"~&\"", 0),
        ] {
            assert_eq!(counts(text).3, joins, "{text}");
        }
    }

    #[test]
    fn repetitions_are_bounded_wherever_they_are_counted() {
        for count in ["~N", "~ N", "~1..N", "~N..1", "~1 .. N", "{N}", "{1,N}", "{N,}", "{ 1 , N }", "{,N}"] {
            let text = |times: &str| format!("start: \"a\"{}\n", count.replace('N', times));
            assert_eq!(lark(&text("100000")), Ok(Size::Unknown), "{count}");
            for many in ["100001", "99999999999999999999999"] {
                let error = lark(&text(many)).expect_err(count);
                assert!(error.message.ends_with("at most 100000"), "{count}: {error}");
            }
        }
        assert_eq!(lark("start: a 100001 | b (100001)\n"), Ok(Size::Unknown), "names are no counts");
    }

    #[test]
    fn what_is_joined_has_few_parts_and_what_is_not_may_have_many() {
        let texts = |count: usize, joined: &str| format!("start: ({}) {joined}", "\"a\" ".repeat(count));
        assert_eq!(lark(&texts(5_000, "")), Ok(Size::Unknown));
        // 16 parts each: 1,040,000 in all.
        let classes = format!("/{}/ ", "\\pL".repeat(5_000)).repeat(13);
        assert_eq!(lark(&format!("start: {classes}")), Ok(Size::Unknown));
        // Each text, and one more, squared.
        assert_eq!(lark(&texts(999, "& b")), Ok(Size::Unknown));
        let error = lark(&texts(1_000, "& b")).expect_err("a million and more");
        assert!(error.message.contains("has 1002001 combinations"), "{error}");
        assert_eq!(lark(&texts(99, "& b & c")), Ok(Size::Unknown));
        assert!(lark(&texts(100, "& b & ~c")).is_err());
    }

    #[test]
    fn what_is_within_a_grammar_has_its_own_bounds() {
        let long = "a".repeat(17 * 1024);
        assert!(lark(&format!("start: /{long}/")).is_err(), "an expression");
        assert_eq!(lark(&format!("start: \"{long}\"")), Ok(Size::Unknown), "a text");
        let wide = format!("{{\"enum\": [{}1]}}", "1,".repeat(10_000));
        assert!(lark(&format!("start: %json {wide}")).is_err(), "a schema");
        assert_eq!(lark(&format!("start: %llguidance {wide}")), Ok(Size::Unknown));
    }
}

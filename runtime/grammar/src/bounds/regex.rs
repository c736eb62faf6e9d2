//! Bounds of regular expressions.

use super::{MAX_REGEX_BYTES, MAX_REGEX_LEVELS, MAX_REPEATS, Size, at_most};
use crate::error::GrammarError;
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{self, Ast, ErrorKind, RepetitionKind, RepetitionRange, Visitor};

/// Limits of a clearly small expression: parts, and nested repetitions.
const SMALL_PARTS: usize = 400;
const SMALL_REPEATS: u64 = 1000;

/// The size of an expression.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Regex {
    /// Whether it could be parsed; the library decides whether it is valid.
    read: bool,
    /// Characters, classes and repetitions.
    pub(crate) parts: usize,
    /// Most repetitions of one part, over all nested repetitions.
    pub(crate) repeats: u64,
}

impl Regex {
    pub(crate) fn size(&self) -> Size {
        let small = self.read && self.parts <= SMALL_PARTS && self.repeats <= SMALL_REPEATS;
        if small { Size::Small } else { Size::Unknown }
    }
}

/// Measures an expression.
pub(crate) fn regex(text: &str) -> Result<Regex, GrammarError> {
    at_most(String::new, "bytes", text.len(), MAX_REGEX_BYTES)?;
    match ParserBuilder::new().nest_limit(MAX_REGEX_LEVELS).build().parse(text) {
        Ok(ast) => {
            ast::visit(&ast, Finder { found: Regex { read: true, ..Regex::default() }, around: vec![1] })
        }
        Err(error) if matches!(error.kind(), ErrorKind::NestLimitExceeded(_)) => {
            let message = format!("nests groups and repetitions deeper than {MAX_REGEX_LEVELS} levels");
            Err(GrammarError::new(message))
        }
        Err(_) => Ok(Regex::default()),
    }
}

/// Walks an expression with an explicit stack.
struct Finder {
    found: Regex,
    /// Repetitions of the current part, at each enclosing repetition.
    around: Vec<u64>,
}

impl Visitor for Finder {
    type Output = Regex;
    type Err = GrammarError;

    fn finish(self) -> Result<Regex, GrammarError> {
        Ok(self.found)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), GrammarError> {
        self.found.parts += match ast {
            Ast::ClassUnicode(_) => 16,
            Ast::ClassBracketed(_) => 2,
            Ast::Concat(_) | Ast::Alternation(_) | Ast::Group(_) => 0,
            _ => 1,
        };
        if let Ast::Repetition(repetition) = ast {
            let times = match &repetition.op.kind {
                RepetitionKind::Range(RepetitionRange::Exactly(times) | RepetitionRange::AtLeast(times)) => {
                    *times
                }
                RepetitionKind::Range(RepetitionRange::Bounded(_, most)) => *most,
                RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
            };
            let around = self.around.last().copied().unwrap_or(1);
            let repeats = around.saturating_mul(u64::from(times.max(1)));
            let what = "repetitions of one part by repetitions within one another";
            at_most(String::new, what, repeats, MAX_REPEATS)?;
            self.found.repeats = self.found.repeats.max(repeats);
            self.around.push(repeats);
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), GrammarError> {
        if matches!(ast, Ast::Repetition(_)) {
            self.around.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_nested_repetitions_are_counted() {
        for (text, parts, repeats) in [
            ("", 1, 0),
            ("a", 1, 0),
            ("ab", 2, 0),
            ("a|b|c", 3, 0),
            ("(a)(?:b)", 2, 0),
            (".^$\\b", 4, 0),
            ("\\d", 1, 0),
            ("[a-z_0-9]", 2, 0),
            ("\\pL", 16, 0),
            ("a*", 2, 1),
            ("a+b?", 4, 1),
            ("a{5}", 2, 5),
            ("a{5,}", 2, 5),
            ("a{3,7}", 2, 7),
            ("a{0}", 2, 1),
            ("(a{0}){6}", 3, 6),
            ("(a{5}){4}", 3, 20),
            ("(a*){4}", 3, 4),
            ("a{5}b{4}", 4, 5),
            ("a{5}(b{4}){3}", 5, 12),
            ("(a{5}b{2}){4}c{6}", 7, 20),
            ("((a{2}){3}){7}", 4, 42),
        ] {
            let found = regex(text).expect(text);
            assert_eq!((found.parts, found.repeats), (parts, repeats), "{text}");
            assert_eq!(found.size(), Size::Small, "{text}");
        }
    }

    #[test]
    fn what_is_large_or_cannot_be_read_may_take_long() {
        for (text, size) in [
            ("a".repeat(400), Size::Small),
            ("a".repeat(401), Size::Unknown),
            ("a{1000}".to_owned(), Size::Small),
            ("a{1001}".to_owned(), Size::Unknown),
            ("(a{500}){2}".to_owned(), Size::Small),
            ("(a{500}){3}".to_owned(), Size::Unknown),
            ("(".to_owned(), Size::Unknown),
            ("(?=a)b".to_owned(), Size::Unknown),
        ] {
            assert_eq!(regex(&text).expect(&text).size(), size, "{text}");
        }
        assert!(regex("(a{100000}){2}").is_err() && regex("a{100001}").is_err());
    }
}

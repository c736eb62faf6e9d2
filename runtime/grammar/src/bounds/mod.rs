//! Bounds on the depth and size of sources, checked with an explicit stack before any recursive code reads
//! them.
//!
//! The stack of [`crate::stack`] is proven sufficient for these bounds (`tests/bounds`). They do not bound
//! time: the cost of compiling a source is unknown unless it is clearly small ([`Size::Unknown`]), so such a
//! source is first compiled where it can be aborted ([`crate::Trial`]).

#[cfg(test)]
mod corpus;
mod lark;
mod regex;
mod schema;
#[cfg(test)]
mod tests;

pub(crate) use lark::lark;
pub(crate) use regex::regex;
pub(crate) use schema::{ANNOTATIONS, schema};

use crate::error::GrammarError;
use crate::source::Source;
use std::fmt::Display;

/// Most levels of a schema: one for each nested schema, with each `$ref` expanded.
pub const MAX_LEVELS: usize = 1024;
/// Most levels of JSON in a schema, which is serialised and parsed again.
pub const MAX_JSON_LEVELS: usize = 112;
/// Most schemas in a schema.
pub const MAX_SCHEMAS: usize = 10_000;
/// Most properties and required names of a schema, over all its objects.
pub const MAX_PROPERTIES: usize = 4000;
/// Most optional properties of one object: any of them may come next, and the library follows all of them at
/// once.
pub const MAX_OPTIONAL: usize = 480;
/// Most values of `enum`, over the whole schema.
pub const MAX_VALUES: usize = 10_000;
/// Most patterns of one `patternProperties`: every pair is compared.
pub const MAX_PATTERN_PROPERTIES: usize = 32;
/// Most schemas of one `allOf`: each may grow by the others.
pub const MAX_ALL_OF: usize = 128;
/// Most schemas of one `oneOf`: every pair is compared.
pub const MAX_ONE_OF: usize = 512;
/// Most schemas of one `anyOf`, and of one array of items.
pub const MAX_ANY_OF: usize = 2000;
/// Most combinations of the parts of patterns that must match at once. When an answer reaches the point where
/// they differ, the library visits all of them before its limits apply, on a thread that other requests wait
/// for.
pub const MAX_COMBINATIONS: u64 = 1_000_000;
/// Most bytes of a regular expression.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;
/// Deepest nesting of groups and repetitions in a regular expression.
pub const MAX_REGEX_LEVELS: u32 = 64;
/// Most repetitions of one part, over all nested repetitions.
pub const MAX_REPEATS: u64 = 100_000;
/// Most levels of a Lark grammar: one for each rule and terminal, since each may refer to the next, and one
/// for each nested bracket.
pub const MAX_LARK_LEVELS: usize = 1024;
/// Most names, texts and expressions in a Lark grammar.
pub const MAX_LARK_PARTS: usize = 20_000;

/// The estimated cost of compiling a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    /// A few milliseconds.
    Small,
    /// Known only by compiling it.
    Unknown,
}

/// Checks a source of any kind.
pub(crate) fn source(source: &Source) -> Result<Size, GrammarError> {
    match source {
        Source::JsonObject => Ok(Size::Small),
        Source::JsonSchema(value) => schema(value),
        Source::Regex(text) => regex(text).map(|regex| regex.size()),
        Source::Lark(text) => lark(text),
        Source::Choice(texts) => {
            let bytes = texts.iter().map(String::len).sum::<usize>();
            Ok(if bytes <= 16 * 1024 { Size::Small } else { Size::Unknown })
        }
    }
}

/// The quantity that [`MAX_COMBINATIONS`] limits, for errors.
const COMBINATIONS: &str = "combinations or more of the parts of patterns that are to match at once";

/// Rejects a quantity beyond its bound, naming its path.
fn at_most<N: PartialOrd + Display>(
    path: impl FnOnce() -> String,
    what: &str,
    found: N,
    most: N,
) -> Result<(), GrammarError> {
    if found <= most {
        return Ok(());
    }
    Err(GrammarError { path: path(), message: format!("has {found} {what}; at most {most}") })
}

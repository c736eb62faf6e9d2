//! How deep and how large a source may be: walked with an explicit stack before anything that recurses sees
//! it.
//!
//! The bounds are what the stack of [`crate::stack`] is proven against (`tests/bounds`). They do not bound
//! time: what a source costs to compile is unknown unless it is clearly small ([`Size::Unknown`]), so it is
//! first tried where it can be aborted ([`crate::Trial`]).

#[cfg(test)]
mod corpus;
mod lark;
mod regex;
mod schema;
#[cfg(test)]
mod tests;

pub(crate) use lark::lark;
pub(crate) use regex::regex;
pub(crate) use schema::schema;

use crate::error::GrammarError;
use crate::source::Source;
use std::fmt::Display;

/// Most levels of a schema: one for each schema within another, where each `$ref` leads to all that it names.
pub const MAX_LEVELS: usize = 1024;
/// Most levels of JSON in a schema, which is written down and read again.
pub const MAX_JSON_LEVELS: usize = 112;
/// Most schemas in a schema.
pub const MAX_SCHEMAS: usize = 10_000;
/// Most properties and required names of a schema, in all of its objects.
pub const MAX_PROPERTIES: usize = 4000;
/// Most properties of one object that need not be there: any of them may be the next, and the library follows
/// so many at once.
pub const MAX_OPTIONAL: usize = 480;
/// Most values of `enum`, in all of a schema.
pub const MAX_VALUES: usize = 10_000;
/// Most patterns of one `patternProperties`: each is compared with each.
pub const MAX_PATTERN_PROPERTIES: usize = 32;
/// Most schemas of one `allOf`: each may grow by what the others say.
pub const MAX_ALL_OF: usize = 128;
/// Most schemas of one `oneOf`: each is compared with each.
pub const MAX_ONE_OF: usize = 512;
/// Most schemas of one `anyOf`, and of one array of items.
pub const MAX_ANY_OF: usize = 2000;
/// Most combinations of the parts of patterns that are to match at once: when an answer comes to where they
/// differ, the library looks at all of them before it counts, on the thread that others wait for.
pub const MAX_COMBINATIONS: u64 = 1_000_000;
/// Most bytes of a regular expression.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;
/// Deepest nesting of groups and repetitions in a regular expression.
pub const MAX_REGEX_LEVELS: u32 = 64;
/// How often repetitions within one another may repeat something, in all.
pub const MAX_REPEATS: u64 = 100_000;
/// Most levels of a Lark grammar: one for each rule and terminal, and one for each bracket within another
/// there, since each may name the next.
pub const MAX_LARK_LEVELS: usize = 1024;
/// Most names, texts and expressions in a Lark grammar.
pub const MAX_LARK_PARTS: usize = 20_000;

/// What is known about the cost of compiling a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    /// A few milliseconds.
    Small,
    /// It takes compiling it to know.
    Unknown,
}

/// Bounds of any source.
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

/// What [`MAX_COMBINATIONS`] is of.
const COMBINATIONS: &str = "combinations or more of the parts of patterns that are to match at once";

/// Refuses what is beyond a bound, by the path where it stands.
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

//! Mistral: `[TOOL_CALLS]` before an array of JSON calls (tokenizers up to version 7) or before each
//! `NAME[ARGS]{…}` (version 11 and later; `[CALL_ID]` and an id may precede `[ARGS]`). There is no closing
//! tag.

use super::event::CallOutcome;
use super::flow::{Flow, LONGEST_NAME};
use super::json_calls::{JsonCalls, JsonDialect};
use super::json_text::{JsonText, Read};
use super::output::Output;

pub(crate) const OPEN: &str = "[TOOL_CALLS]";
pub(crate) const ARGUMENTS: &str = "[ARGS]";
pub(crate) const CALL_ID: &str = "[CALL_ID]";
const LIST: JsonDialect = JsonDialect { tags: &[OPEN], closed: false, bare: false };

/// Reads the text after the tag.
#[derive(Clone, Debug)]
pub(crate) struct Mistral {
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    /// A name, or an array.
    Name(String),
    /// In an id after the name.
    Id(String, String),
    /// Before the arguments.
    Before,
    Arguments(JsonText),
    List(JsonCalls),
    /// After the arguments.
    After,
    Broken,
}

impl Mistral {
    pub(crate) fn new() -> Mistral {
        Mistral { at: At::Name(String::new()) }
    }

    pub(crate) fn tags(&self) -> &'static [&'static str] {
        match &self.at {
            At::Name(_) | At::Id(..) => &[OPEN, ARGUMENTS, CALL_ID],
            At::Arguments(text) if text.in_string() => &[],
            At::List(list) => list.tags(),
            At::Before | At::Arguments(_) | At::After | At::Broken => &[OPEN],
        }
    }

    pub(crate) fn tag(&mut self, which: usize, out: &mut Output) -> Flow {
        let tag = self.tags()[which];
        match (&mut self.at, tag) {
            (At::List(list), _) => {
                list.finish(out);
            }
            (At::Name(name), ARGUMENTS | CALL_ID) if !name.trim().is_empty() => {
                let name = name.trim().to_owned();
                out.source(tag);
                if tag == ARGUMENTS {
                    out.begin(&name);
                }
                self.at = if tag == ARGUMENTS { At::Before } else { At::Id(name, String::new()) };
                return Flow::Stay;
            }
            (At::Id(name, id), ARGUMENTS) => {
                let id = id.trim();
                out.begin_with(name, (!id.is_empty()).then(|| id.to_owned()));
                self.at = At::Before;
                return Flow::Stay;
            }
            (At::Name(_) | At::Id(..), ARGUMENTS | CALL_ID) => {
                out.source(tag);
                out.reject_source();
                return Flow::Leave;
            }
            (At::Before | At::Arguments(_), _) => out.end(CallOutcome::Malformed),
            (At::After, _) => out.drop_source(),
            _ => out.reject_source(),
        }
        out.source(tag);
        *self = Mistral::new();
        Flow::Stay
    }

    pub(crate) fn plain(&mut self, character: char, out: &mut Output) -> Flow {
        let mut bytes = [0; 4];
        let text: &str = character.encode_utf8(&mut bytes);
        match &mut self.at {
            At::List(list) => return list.plain(character, out),
            At::Broken => {
                out.reject(text);
                return Flow::Stay;
            }
            _ => {}
        }
        out.source(text);
        match &mut self.at {
            At::Name(name) => match character {
                '[' if name.trim().is_empty() => {
                    self.at = At::List(JsonCalls::new(&LIST));
                }
                '{' if !name.trim().is_empty() => {
                    out.begin(name.trim());
                    return self.arguments(character, out);
                }
                _ if name.len() < LONGEST_NAME
                    && (is_name(character) || name.trim().is_empty() && character == ' ') =>
                {
                    name.push(character);
                }
                '\n' if name.is_empty() => {}
                _ => return Mistral::give_up(character, out),
            },
            At::Id(_, id) if id.len() < LONGEST_NAME && is_name(character) => id.push(character),
            At::Id(..) => return Mistral::give_up(character, out),
            At::Before | At::After if character.is_ascii_whitespace() => {}
            At::Before => return self.arguments(character, out),
            At::Arguments(json) => {
                let mut part = String::new();
                let read = json.push(character, &mut part);
                out.arguments(&part);
                match read {
                    Read::More => {}
                    Read::Done => {
                        out.end(CallOutcome::Complete);
                        self.at = At::After;
                    }
                    Read::Before | Read::Bad => {
                        out.end(CallOutcome::Malformed);
                        out.reject(text);
                        self.at = At::Broken;
                    }
                }
            }
            At::After => {
                out.drop_source();
                return Flow::Again(character);
            }
            At::List(_) | At::Broken => {}
        }
        Flow::Stay
    }

    pub(crate) fn finish(&mut self, out: &mut Output) {
        match &mut self.at {
            At::List(list) => list.finish(out),
            At::After => out.drop_source(),
            _ => {}
        }
        out.end(CallOutcome::Truncated);
        out.reject_source();
    }

    fn arguments(&mut self, character: char, out: &mut Output) -> Flow {
        if character == '{' {
            self.at = At::Arguments(JsonText::new());
            return self.plain(character, out);
        }
        out.end(CallOutcome::Malformed);
        out.reject(character.encode_utf8(&mut [0; 4]));
        self.at = At::Broken;
        Flow::Stay
    }

    fn give_up(character: char, out: &mut Output) -> Flow {
        out.unread();
        out.reject_source();
        Flow::Again(character)
    }
}

/// Whether a character may occur in a tool's name.
fn is_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/')
}

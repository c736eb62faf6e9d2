//! Calls as JSON objects with a name and arguments, alone, in sequence or in an array: shared by Hermes,
//! Mistral's older form and bare JSON.

use super::event::CallOutcome;
use super::flow::{Flow, LONGEST_NAME};
use super::json_text::{JsonText, Quoted, QuotedRead, Read};
use super::output::Output;

/// The differences between these formats.
#[derive(Debug)]
pub(crate) struct JsonDialect {
    /// The tags that count outside strings; the closing tag, if there is one, comes first.
    pub(crate) tags: &'static [&'static str],
    /// Whether the first tag closes.
    pub(crate) closed: bool,
    /// Whether there are no tags: text that does not begin as a call of one of the tools is plain text.
    pub(crate) bare: bool,
}

/// Without tags, most bytes before a call must have begun.
const BARE_LIMIT: usize = 512;

/// Reads one block of calls.
#[derive(Clone, Debug)]
pub(crate) struct JsonCalls {
    dialect: &'static JsonDialect,
    at: At,
    /// Whether a call of this block was read.
    any: bool,
    /// Of the object being read: its last key,
    key: String,
    /// its name,
    name: String,
    /// its id, if it comes before the name,
    id: String,
    /// the arguments, if they come before the name,
    early: String,
    /// whether there were any,
    arguments: bool,
    /// and how many `function` objects within it are open.
    nested: u32,
}

#[derive(Clone, Debug)]
enum At {
    /// Between calls.
    List,
    Key,
    InKey(Quoted),
    Colon,
    Value,
    Name(Quoted),
    Id(Quoted),
    Arguments(JsonText),
    /// Arguments as a string of JSON, once that has begun; whether it is complete.
    ArgumentsText(Quoted, Option<JsonText>, bool),
    Skipped(JsonText),
    AfterValue,
    /// After something malformed.
    Broken,
}

impl JsonCalls {
    pub(crate) fn new(dialect: &'static JsonDialect) -> JsonCalls {
        JsonCalls {
            dialect,
            at: At::List,
            any: false,
            key: String::new(),
            name: String::new(),
            id: String::new(),
            early: String::new(),
            arguments: false,
            nested: 0,
        }
    }

    pub(crate) fn tags(&self) -> &'static [&'static str] {
        let in_string = match &self.at {
            At::InKey(_) | At::Name(_) | At::Id(_) | At::ArgumentsText(..) => true,
            At::Arguments(text) | At::Skipped(text) => text.in_string(),
            _ => false,
        };
        if in_string { &[] } else { self.dialect.tags }
    }

    pub(crate) fn tag(&mut self, which: usize, out: &mut Output) -> Flow {
        let tag = self.dialect.tags[which];
        let closes = self.dialect.closed && which == 0;
        match self.at {
            At::Broken if closes => out.reject(tag),
            At::Broken => {}
            At::List if self.any => out.drop_source(),
            _ if out.is_open() => out.end(CallOutcome::Malformed),
            _ => {
                out.source(if closes { tag } else { "" });
                out.reject_source();
            }
        }
        if closes {
            return Flow::Leave;
        }
        *self = JsonCalls::new(self.dialect);
        out.source(tag);
        Flow::Stay
    }

    pub(crate) fn finish(&mut self, out: &mut Output) {
        if out.is_open() {
            out.end(CallOutcome::Truncated);
        } else if self.any && matches!(self.at, At::List) {
            out.drop_source();
        } else {
            out.reject_source();
        }
    }

    pub(crate) fn plain(&mut self, character: char, out: &mut Output) -> Flow {
        if matches!(self.at, At::Broken) {
            out.reject(character.encode_utf8(&mut [0; 4]));
            return Flow::Stay;
        }
        out.source(character.encode_utf8(&mut [0; 4]));
        self.read(character, out)
    }

    fn read(&mut self, character: char, out: &mut Output) -> Flow {
        let space = matches!(character, ' ' | '\t' | '\n' | '\r');
        match &mut self.at {
            At::List => return self.list(character, out),
            At::Key | At::Colon | At::Value | At::AfterValue if space => {}
            At::Key => match character {
                '"' => {
                    self.key.clear();
                    self.at = At::InKey(Quoted::default());
                }
                '}' => return self.close(character, out),
                _ => return self.fail(character, out),
            },
            At::InKey(quoted) => match quoted.push(character) {
                QuotedRead::More => {}
                QuotedRead::Character(part) if self.key.len() < LONGEST_NAME => self.key.push(part),
                QuotedRead::End if !self.dialect.bare || self.key_of_a_call(out) => self.at = At::Colon,
                _ => return self.fail(character, out),
            },
            At::Colon => match character {
                ':' => self.at = At::Value,
                _ => return self.fail(character, out),
            },
            At::Value => return self.value(character, out),
            At::Name(quoted) => match quoted.push(character) {
                QuotedRead::More => {}
                QuotedRead::Character(part) if self.name.len() < LONGEST_NAME => self.name.push(part),
                QuotedRead::End if self.name_of_a_call(out) => {
                    let id = std::mem::take(&mut self.id);
                    out.begin_with(&self.name, (!id.is_empty()).then_some(id));
                    out.arguments(&self.early);
                    self.early = String::new();
                    self.at = At::AfterValue;
                }
                _ => return self.fail(character, out),
            },
            At::Id(quoted) => match quoted.push(character) {
                QuotedRead::More => {}
                QuotedRead::Character(part) if self.id.len() < LONGEST_NAME => self.id.push(part),
                QuotedRead::End => self.at = At::AfterValue,
                QuotedRead::Character(_) | QuotedRead::Bad => return self.fail(character, out),
            },
            At::Arguments(text) => {
                let mut part = String::new();
                let read = text.push(character, &mut part);
                self.emit(&part, out);
                match read {
                    Read::More => {}
                    Read::Done => self.at = At::AfterValue,
                    Read::Before | Read::Bad => return self.fail(character, out),
                }
            }
            At::ArgumentsText(quoted, inner, complete) => {
                let mut part = String::new();
                let good = match (quoted.push(character), &mut *inner) {
                    (QuotedRead::More, _) => true,
                    (QuotedRead::Character(' ' | '\t' | '\n' | '\r'), None) => true,
                    (QuotedRead::Character(space), _) if *complete => space.is_ascii_whitespace(),
                    (QuotedRead::Character(begin), None) => {
                        let mut text = JsonText::new();
                        text.push(begin, &mut part);
                        *inner = Some(text);
                        begin == '{'
                    }
                    (QuotedRead::Character(next), Some(text)) => {
                        let read = text.push(next, &mut part);
                        *complete = read == Read::Done;
                        matches!(read, Read::More | Read::Done)
                    }
                    (QuotedRead::End, None) => {
                        part.push_str("{}");
                        self.at = At::AfterValue;
                        true
                    }
                    (QuotedRead::End, Some(_)) if *complete => {
                        self.at = At::AfterValue;
                        true
                    }
                    (QuotedRead::End | QuotedRead::Bad, _) => false,
                };
                if good {
                    self.emit(&part, out);
                } else {
                    return self.fail(character, out);
                }
            }
            At::Skipped(text) => match text.push(character, &mut String::new()) {
                Read::More => {}
                Read::Done => self.at = At::AfterValue,
                Read::Before => {
                    self.at = At::AfterValue;
                    return self.read(character, out);
                }
                Read::Bad => return self.fail(character, out),
            },
            At::AfterValue => match character {
                ',' => self.at = At::Key,
                '}' => return self.close(character, out),
                _ => return self.fail(character, out),
            },
            At::Broken => {}
        }
        if self.dialect.bare && out.source_len() > BARE_LIMIT {
            self.fail(character, out)
        } else {
            Flow::Stay
        }
    }

    fn list(&mut self, character: char, out: &mut Output) -> Flow {
        match character {
            ' ' | '\t' | '\n' | '\r' | '[' | ',' | ']' => {}
            ';' if self.dialect.bare && self.any => {}
            '{' => {
                *self = JsonCalls { at: At::Key, any: self.any, ..JsonCalls::new(self.dialect) };
            }
            '}' if self.any => {
                out.drop_source();
                out.reject("}");
            }
            _ => {
                out.unread();
                if self.any {
                    out.drop_source();
                    return Flow::Again(character);
                }
                return self.give_up(character, out);
            }
        }
        if self.dialect.bare && out.source_len() > BARE_LIMIT {
            out.unread();
            return self.give_up(character, out);
        }
        Flow::Stay
    }

    /// The text read is not a block of calls.
    fn give_up(&mut self, character: char, out: &mut Output) -> Flow {
        if self.dialect.bare {
            out.source_is_text();
            return Flow::Text(character);
        }
        out.reject_source();
        Flow::Again(character)
    }

    fn value(&mut self, character: char, out: &mut Output) -> Flow {
        let arguments = matches!(self.key.as_str(), "arguments" | "parameters") && !self.arguments;
        match (self.key.as_str(), character) {
            ("name", '"') if !out.is_open() => {
                self.at = At::Name(Quoted::default());
                return Flow::Stay;
            }
            ("id", '"') if !out.is_open() => {
                self.id.clear();
                self.at = At::Id(Quoted::default());
                return Flow::Stay;
            }
            ("function", '{') if self.nested < self.deepest() => {
                self.nested += 1;
                self.at = At::Key;
                return Flow::Stay;
            }
            // The grammar, which detects that a call begins, allows no other members before its name.
            (key, character) if self.dialect.bare && !out.is_open() && (key, character) != ("type", '"') => {
                return self.fail(character, out);
            }
            (_, '{') if arguments => {
                self.arguments = true;
                self.at = At::Arguments(JsonText::new());
            }
            (_, '"') if arguments => {
                self.arguments = true;
                self.at = At::ArgumentsText(Quoted::default(), None, false);
                return Flow::Stay;
            }
            (_, 'n') if arguments => self.at = At::Skipped(JsonText::new()),
            _ if arguments => return self.fail(character, out),
            _ => self.at = At::Skipped(JsonText::new()),
        }
        self.read(character, out)
    }

    fn emit(&mut self, part: &str, out: &mut Output) {
        if out.is_open() {
            out.arguments(part);
        } else {
            self.early.push_str(part);
        }
    }

    /// Most `function` objects that may be open.
    fn deepest(&self) -> u32 {
        if self.dialect.bare { 1 } else { 8 }
    }

    fn key_of_a_call(&self, out: &Output) -> bool {
        out.is_open() || matches!(self.key.as_str(), "name" | "type" | "function")
    }

    fn name_of_a_call(&self, out: &Output) -> bool {
        !self.name.is_empty() && (!self.dialect.bare || out.tools().contains(&self.name))
    }

    /// Handles a `}` outside the arguments.
    fn close(&mut self, character: char, out: &mut Output) -> Flow {
        if self.nested > 0 {
            self.nested -= 1;
            self.at = At::AfterValue;
            return Flow::Stay;
        }
        if !out.is_open() {
            return self.fail(character, out);
        }
        if !self.arguments {
            out.arguments("{}");
        }
        out.end(CallOutcome::Complete);
        self.any = true;
        self.at = At::List;
        Flow::Stay
    }

    fn fail(&mut self, character: char, out: &mut Output) -> Flow {
        if out.is_open() {
            out.end(CallOutcome::Malformed);
            out.reject(character.encode_utf8(&mut [0; 4]));
        } else if self.dialect.bare {
            out.unread();
            out.source_is_text();
            return Flow::Text(character);
        } else {
            out.reject_source();
        }
        self.at = At::Broken;
        Flow::Stay
    }
}

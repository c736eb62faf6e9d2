//! Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:5}<tool_call|>`. Keys have no quotes, and strings
//! are between tags.

use super::event::CallOutcome;
use super::flow::{Flow, LONGEST_NAME};
use super::json_text::{Quoted, QuotedRead, escape, quote};
use super::output::Output;

pub(crate) const OPEN: &str = "<|tool_call>";
pub(crate) const CLOSE: &str = "<tool_call|>";
pub(crate) const QUOTE: &str = "<|\"|>";
const TAGS: [&str; 3] = [CLOSE, OPEN, QUOTE];
/// Most levels of nested arrays and objects, as for JSON.
const DEPTH: usize = 100;

/// Reads one call.
#[derive(Clone, Debug)]
pub(crate) struct Gemma {
    at: At,
    /// The open arrays and objects: whether each is an object.
    stack: Vec<bool>,
    /// Whether the innermost one has an element.
    filled: bool,
}

#[derive(Clone, Debug)]
enum At {
    /// `call:` and the name.
    Head(String),
    /// Before a key, or before a value of an array.
    Item,
    Key(String),
    QuotedKey(String),
    /// A quoted key, as in JSON.
    JsonKey(Quoted, String),
    Colon,
    Value,
    String,
    /// A quoted string, as in JSON.
    JsonString(Quoted),
    /// A number, a boolean, null, or text that lacks its quotes.
    Bare(String),
    AfterValue,
    /// After the call.
    After,
    Broken,
}

impl Gemma {
    pub(crate) fn new() -> Gemma {
        Gemma { at: At::Head(String::new()), stack: Vec::new(), filled: false }
    }

    pub(crate) fn tags(&self) -> &'static [&'static str] {
        match self.at {
            At::String | At::QuotedKey(_) => &TAGS[2..],
            At::JsonKey(..) | At::JsonString(_) => &[],
            _ => &TAGS,
        }
    }

    pub(crate) fn tag(&mut self, which: usize, out: &mut Output) -> Flow {
        let tag = self.tags()[which];
        if tag == QUOTE {
            return self.quote(out);
        }
        match &mut self.at {
            At::After => out.drop_source(),
            At::Broken => out.reject(if tag == CLOSE { tag } else { "" }),
            At::Head(_) => {
                out.source(if tag == CLOSE { tag } else { "" });
                out.reject_source();
            }
            at => {
                let left = at.take_buffer();
                out.end(CallOutcome::Malformed);
                out.reject(&left);
            }
        }
        if tag == CLOSE {
            return Flow::Leave;
        }
        *self = Gemma::new();
        out.source(tag);
        Flow::Stay
    }

    pub(crate) fn plain(&mut self, character: char, out: &mut Output) -> Flow {
        let mut bytes = [0; 4];
        let text: &str = character.encode_utf8(&mut bytes);
        if matches!(self.at, At::Broken) {
            out.reject(text);
            return Flow::Stay;
        }
        out.source(text);
        let object = self.stack.last() == Some(&true);
        match &mut self.at {
            At::Head(head) => match character {
                '{' => match head.trim().strip_prefix("call:").map(str::trim) {
                    Some(name) if !name.is_empty() => {
                        out.begin(name);
                        self.open(true, out);
                    }
                    _ => return Gemma::give_up(character, out),
                },
                '\n' if head.is_empty() => {}
                '\n' | '<' => return Gemma::give_up(character, out),
                _ if head.len() >= LONGEST_NAME => return Gemma::give_up(character, out),
                _ => {
                    head.push(character);
                    let head = head.trim_start();
                    if !head.starts_with("call:") && !"call:".starts_with(head) {
                        return Gemma::give_up(character, out);
                    }
                }
            },
            At::Item | At::Colon | At::Value | At::AfterValue | At::After
                if character.is_ascii_whitespace() => {}
            At::Item if character == '}' && object || character == ']' && !object => self.close(out),
            At::Item if !object => return self.value(character, out),
            At::Item => match character {
                '"' => self.at = At::JsonKey(Quoted::default(), String::new()),
                '{' | '[' | ']' | ':' | ',' => self.fail(text, out),
                _ => self.at = At::Key(text.to_owned()),
            },
            At::Key(key) => match character {
                ':' => {
                    let key = std::mem::take(key);
                    self.key(key.trim(), out);
                    self.at = At::Value;
                }
                '{' | '}' | '[' | ']' | ',' => self.fail(text, out),
                _ if key.len() >= LONGEST_NAME => self.fail(text, out),
                _ => key.push(character),
            },
            At::QuotedKey(key) => {
                if key.len() >= LONGEST_NAME {
                    self.fail(text, out);
                } else {
                    key.push(character);
                }
            }
            At::JsonKey(quoted, key) => match quoted.push(character) {
                QuotedRead::More => {}
                QuotedRead::Character(part) if key.len() < LONGEST_NAME => key.push(part),
                QuotedRead::End => {
                    let key = std::mem::take(key);
                    self.key(&key, out);
                }
                _ => self.fail(text, out),
            },
            At::Colon => {
                if character == ':' {
                    self.at = At::Value;
                } else {
                    self.fail(text, out);
                }
            }
            At::Value => return self.value(character, out),
            At::String => {
                let mut part = String::new();
                escape(&mut part, character);
                out.arguments(&part);
            }
            At::JsonString(quoted) => match quoted.push(character) {
                QuotedRead::More => {}
                QuotedRead::Character(part) => {
                    let mut json = String::new();
                    escape(&mut json, part);
                    out.arguments(&json);
                }
                QuotedRead::End => {
                    out.arguments("\"");
                    self.at = At::AfterValue;
                }
                QuotedRead::Bad => self.fail(text, out),
            },
            At::Bare(value) => match character {
                ',' | '}' | ']' => {
                    let json = bare(value);
                    out.arguments(&json);
                    self.at = At::AfterValue;
                    return self.plain(character, out);
                }
                _ => value.push(character),
            },
            At::AfterValue => match character {
                ',' => self.at = At::Item,
                '}' if object => self.close(out),
                ']' if !object => self.close(out),
                _ => self.fail(text, out),
            },
            At::After => {
                out.drop_source();
                return Flow::Again(character);
            }
            At::Broken => {}
        }
        Flow::Stay
    }

    pub(crate) fn finish(&mut self, out: &mut Output) {
        if matches!(self.at, At::After) {
            out.drop_source();
        }
        let left = if out.is_open() { self.at.take_buffer() } else { String::new() };
        out.end(CallOutcome::Truncated);
        out.reject(&left);
        out.reject_source();
    }

    fn quote(&mut self, out: &mut Output) -> Flow {
        let object = self.stack.last() == Some(&true);
        match &mut self.at {
            At::Item if object => self.at = At::QuotedKey(String::new()),
            At::Item => {
                self.comma(out);
                out.arguments("\"");
                self.at = At::String;
            }
            At::Value => {
                out.arguments("\"");
                self.at = At::String;
            }
            At::String => {
                out.arguments("\"");
                self.at = At::AfterValue;
            }
            At::QuotedKey(key) => {
                let key = std::mem::take(key);
                self.key(&key, out);
            }
            At::Head(_) => {
                out.source(QUOTE);
                out.reject_source();
                return Flow::Leave;
            }
            At::After => out.reject(QUOTE),
            _ => self.fail(QUOTE, out),
        }
        Flow::Stay
    }

    fn value(&mut self, character: char, out: &mut Output) -> Flow {
        if self.stack.last() == Some(&false) {
            self.comma(out);
        }
        match character {
            '{' | '[' if self.stack.len() < DEPTH => self.open(character == '{', out),
            '"' => {
                out.arguments("\"");
                self.at = At::JsonString(Quoted::default());
            }
            '{' | '[' | '}' | ']' | ',' | ':' => self.fail(character.encode_utf8(&mut [0; 4]), out),
            _ => self.at = At::Bare(character.to_string()),
        }
        Flow::Stay
    }

    fn comma(&mut self, out: &mut Output) {
        if self.filled {
            out.arguments(",");
        }
        self.filled = true;
    }

    fn key(&mut self, key: &str, out: &mut Output) {
        self.comma(out);
        out.arguments(&quote(key));
        out.arguments(":");
        self.at = At::Colon;
    }

    fn open(&mut self, object: bool, out: &mut Output) {
        out.arguments(if object { "{" } else { "[" });
        self.stack.push(object);
        self.filled = false;
        self.at = At::Item;
    }

    fn close(&mut self, out: &mut Output) {
        out.arguments(if self.stack.pop() == Some(true) { "}" } else { "]" });
        self.filled = true;
        self.at = At::AfterValue;
        if self.stack.is_empty() {
            out.end(CallOutcome::Complete);
            self.at = At::After;
        }
    }

    fn fail(&mut self, text: &str, out: &mut Output) {
        let left = self.at.take_buffer();
        out.end(CallOutcome::Malformed);
        out.reject(&left);
        out.reject(text);
        self.at = At::Broken;
    }

    fn give_up(character: char, out: &mut Output) -> Flow {
        out.unread();
        out.reject_source();
        Flow::Again(character)
    }
}

impl At {
    /// The text read that is not among the arguments yet.
    fn take_buffer(&mut self) -> String {
        match self {
            At::Key(text) | At::QuotedKey(text) | At::JsonKey(_, text) | At::Bare(text) => {
                std::mem::take(text)
            }
            _ => String::new(),
        }
    }
}

/// The JSON text of an unquoted value.
fn bare(text: &str) -> String {
    let text = text.trim();
    match text {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ if serde_json::from_str::<serde_json::Value>(text).is_ok() => text.to_owned(),
        _ => quote(text),
    }
}

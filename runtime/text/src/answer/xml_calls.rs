//! Calls as tags with parameters in them, shared by Qwen3-Coder and MiniMax. They are not XML: nothing is
//! escaped, and only its closing tag ends a value.

use super::event::CallOutcome;
use super::flow::{Flow, LONGEST_NAME};
use super::json_text::{escape, quote};
use super::output::Output;
use super::schema::Types;

/// The tags of a format, by position.
#[derive(Debug)]
pub(crate) struct XmlDialect {
    /// Between calls: the block's end, its beginning, a call's beginning up to its name.
    pub(crate) between: [&'static str; 3],
    /// In a call: the block's end, its beginning, the call's end, a parameter's beginning up to its name.
    pub(crate) body: [&'static str; 4],
    /// In a value: its end.
    pub(crate) value: [&'static str; 1],
    /// Whether values are on lines of their own.
    pub(crate) lines: bool,
}

const CLOSE: usize = 0;
const OPEN: usize = 1;
const CALL: usize = 2;
const CALL_END: usize = 2;

/// Reads one block of calls.
#[derive(Clone, Debug)]
pub(crate) struct XmlCalls {
    dialect: &'static XmlDialect,
    at: At,
    /// Whether the block's own tag is open.
    block: bool,
    /// Whether a call of this block was read.
    any: bool,
    name: String,
    /// Whether the call has a parameter.
    parameters: bool,
}

#[derive(Clone, Debug)]
enum At {
    Between,
    /// In a call's name, up to `>`.
    Name(String),
    Body,
    /// In a parameter's name, up to `>`.
    Key(String),
    Value(Value),
    /// After something malformed.
    Broken,
}

impl XmlCalls {
    pub(crate) fn new(dialect: &'static XmlDialect, tag: &str) -> XmlCalls {
        let block = tag == dialect.between[OPEN];
        let at = if block { At::Between } else { At::Name(String::new()) };
        XmlCalls { dialect, at, block, any: false, name: String::new(), parameters: false }
    }

    pub(crate) fn tags(&self) -> &'static [&'static str] {
        match self.at {
            At::Between => &self.dialect.between,
            At::Name(_) | At::Key(_) => &[],
            At::Body | At::Broken => &self.dialect.body,
            At::Value(_) => &self.dialect.value,
        }
    }

    pub(crate) fn tag(&mut self, which: usize, out: &mut Output) -> Flow {
        match &mut self.at {
            At::Between if which == CALL => {
                out.source(self.dialect.between[CALL]);
                self.at = At::Name(String::new());
                return Flow::Stay;
            }
            At::Between if self.any => out.drop_source(),
            At::Between => {
                out.source(if which == CLOSE { self.dialect.between[CLOSE] } else { "" });
                out.reject_source();
            }
            At::Body if which <= OPEN => self.end(out),
            At::Body if which == CALL_END => {
                self.end(out);
                return self.ended();
            }
            At::Body => {
                self.at = At::Key(String::new());
                return Flow::Stay;
            }
            At::Value(value) => {
                value.finish(out);
                self.at = At::Body;
                return Flow::Stay;
            }
            At::Broken => {
                out.reject(if which == OPEN { "" } else { self.dialect.body[which] });
                if which == CALL_END {
                    return self.ended();
                }
                if which > CALL_END {
                    return Flow::Stay;
                }
            }
            At::Name(_) | At::Key(_) => return Flow::Stay,
        }
        if which == CLOSE {
            return Flow::Leave;
        }
        *self = XmlCalls::new(self.dialect, self.dialect.between[OPEN]);
        out.source(self.dialect.between[OPEN]);
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
        match &mut self.at {
            At::Between | At::Body if character.is_ascii_whitespace() => {}
            At::Between => {
                out.unread();
                if self.any {
                    out.drop_source();
                } else {
                    out.reject_source();
                }
                return Flow::Again(character);
            }
            At::Name(name) => match named(name, character) {
                Named::More => {}
                Named::End(name) => {
                    out.begin(&name);
                    self.name = name;
                    self.parameters = false;
                    self.at = At::Body;
                }
                Named::Bad => {
                    out.reject_source();
                    self.any = true;
                    self.at = At::Broken;
                }
            },
            At::Key(key) => match named(key, character) {
                Named::More => {}
                Named::End(key) => {
                    out.arguments(if self.parameters { "," } else { "{" });
                    out.arguments(&quote(&key));
                    out.arguments(":");
                    self.parameters = true;
                    let types = out.tools().types(&self.name, &key);
                    self.at = At::Value(Value::new(types, self.dialect.lines));
                }
                Named::Bad => {
                    let read = std::mem::take(key);
                    self.fail(out);
                    out.reject(self.dialect.body[3]);
                    out.reject(&read);
                    out.reject(text);
                }
            },
            At::Value(value) => value.push(character, out),
            At::Body => {
                self.fail(out);
                out.reject(text);
            }
            At::Broken => {}
        }
        Flow::Stay
    }

    pub(crate) fn finish(&mut self, out: &mut Output) {
        match &mut self.at {
            At::Between if self.any => out.drop_source(),
            At::Value(value) => value.cut(out),
            _ => {}
        }
        out.end(CallOutcome::Truncated);
        match &self.at {
            At::Key(key) => {
                out.reject(self.dialect.body[3]);
                out.reject(key);
            }
            At::Value(value) => out.reject(&value.read),
            _ => {}
        }
        out.reject_source();
    }

    fn fail(&mut self, out: &mut Output) {
        out.end(CallOutcome::Malformed);
        self.at = At::Broken;
    }

    fn end(&mut self, out: &mut Output) {
        out.arguments(if self.parameters { "}" } else { "{}" });
        out.end(CallOutcome::Complete);
    }

    /// Handles the end of a call.
    fn ended(&mut self) -> Flow {
        self.any = true;
        self.at = At::Between;
        if self.block { Flow::Stay } else { Flow::Leave }
    }
}

enum Named {
    More,
    End(String),
    Bad,
}

/// Reads a name up to `>`, without the quotes around it.
fn named(name: &mut String, character: char) -> Named {
    match character {
        '>' => {
            let read = name.trim();
            let read = read.strip_prefix(['"', '\'']).unwrap_or(read);
            let read = read.strip_suffix(['"', '\'']).unwrap_or(read);
            if read.is_empty() { Named::Bad } else { Named::End(read.to_owned()) }
        }
        '<' | '\n' => Named::Bad,
        _ if name.len() >= LONGEST_NAME => Named::Bad,
        _ => {
            name.push(character);
            Named::More
        }
    }
}

/// A parameter's value, being converted to JSON.
#[derive(Clone, Debug)]
struct Value {
    types: Types,
    /// Text read and not yet emitted.
    read: String,
    /// Whether it is a string that is emitted as it arrives.
    streams: bool,
    lines: bool,
    first: bool,
    /// A line end that may be the last character.
    line_end: bool,
}

impl Value {
    fn new(types: Types, lines: bool) -> Value {
        Value { types, read: String::new(), streams: false, lines, first: true, line_end: false }
    }

    fn push(&mut self, character: char, out: &mut Output) {
        let first = std::mem::take(&mut self.first);
        if self.lines && character == '\n' {
            if self.line_end {
                self.add('\n', out);
            }
            self.line_end = !first;
            return;
        }
        if std::mem::take(&mut self.line_end) {
            self.add('\n', out);
        }
        self.add(character, out);
    }

    fn add(&mut self, character: char, out: &mut Output) {
        if self.streams {
            let mut part = String::new();
            escape(&mut part, character);
            out.arguments(&part);
            return;
        }
        self.read.push(character);
        let null =
            self.types.null() && ["null", "None"].iter().any(|null| null.starts_with(self.read.trim()));
        // A string is emitted at once, unless it may still be null.
        if self.types.string() && !(null && self.read.len() < 16) {
            self.stream(out);
        }
    }

    fn stream(&mut self, out: &mut Output) {
        let text = quote(&std::mem::take(&mut self.read));
        out.arguments(text.strip_suffix('"').unwrap_or(&text));
        self.streams = true;
    }

    fn finish(&mut self, out: &mut Output) {
        if self.streams {
            out.arguments("\"");
            return;
        }
        let json = match self.types.read(&self.read) {
            Some("null") if self.types.null() => Some("null"),
            json if !self.types.string() => json,
            _ => None,
        };
        out.arguments(&json.map_or_else(|| quote(&self.read), str::to_owned));
    }

    /// Handles an answer that ends here. The beginning of a string is emitted; any other text in `read` is an
    /// incomplete value.
    fn cut(&mut self, out: &mut Output) {
        if self.line_end && self.streams {
            out.arguments("\\n");
        }
    }
}

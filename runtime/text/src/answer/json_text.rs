//! Reads JSON character by character.

/// A JSON string after its opening quote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quoted {
    at: InString,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Clone, Debug, Default)]
enum InString {
    #[default]
    Plain,
    Escape,
    /// Hexadecimal digits still to come, and the code so far.
    Hex(u8, u32),
}

/// The meaning of a character in a string.
pub(crate) enum QuotedRead {
    /// Not known yet.
    More,
    /// A character of the value.
    Character(char),
    /// The closing quote.
    End,
    /// Not JSON.
    Bad,
}

impl Quoted {
    /// Consumes the next character. Unescaped control characters are accepted: models write line ends that
    /// way.
    pub(crate) fn push(&mut self, character: char) -> QuotedRead {
        match self.at {
            InString::Plain => match character {
                '\\' => {
                    self.at = InString::Escape;
                    QuotedRead::More
                }
                _ if self.high.is_some() => QuotedRead::Bad,
                '"' => QuotedRead::End,
                _ => QuotedRead::Character(character),
            },
            InString::Escape => {
                self.at = InString::Plain;
                let meant = match character {
                    'u' => {
                        self.at = InString::Hex(4, 0);
                        return QuotedRead::More;
                    }
                    '"' | '\\' | '/' => character,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    _ => return QuotedRead::Bad,
                };
                if self.high.is_some() { QuotedRead::Bad } else { QuotedRead::Character(meant) }
            }
            InString::Hex(left, code) => {
                let Some(digit) = character.to_digit(16) else { return QuotedRead::Bad };
                let code = code * 16 + digit;
                if left > 1 {
                    self.at = InString::Hex(left - 1, code);
                    return QuotedRead::More;
                }
                self.at = InString::Plain;
                let code = match (self.high.take(), code) {
                    (None, 0xD800..=0xDBFF) => {
                        self.high = Some(code);
                        return QuotedRead::More;
                    }
                    (Some(high), 0xDC00..=0xDFFF) => 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00),
                    (Some(_), _) => return QuotedRead::Bad,
                    (None, code) => code,
                };
                char::from_u32(code).map_or(QuotedRead::Bad, QuotedRead::Character)
            }
        }
    }
}

/// Appends a character of a string's value to JSON text, escaped if necessary.
pub(crate) fn escape(to: &mut String, character: char) {
    match character {
        '"' => to.push_str("\\\""),
        '\\' => to.push_str("\\\\"),
        '\n' => to.push_str("\\n"),
        '\r' => to.push_str("\\r"),
        '\t' => to.push_str("\\t"),
        control @ '\0'..'\u{20}' => to.push_str(&format!("\\u{:04x}", u32::from(control))),
        other => to.push(other),
    }
}

/// A value as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    let mut json = String::from('"');
    text.chars().for_each(|character| escape(&mut json, character));
    json.push('"');
    json
}

/// The meaning of a character of JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// There is more to come.
    More,
    /// The value is complete.
    Done,
    /// The value was complete before this character.
    Before,
    /// Not JSON.
    Bad,
}

/// Reads one JSON value, checks it and passes it on.
#[derive(Clone, Debug)]
pub(crate) struct JsonText {
    /// The open arrays and objects: whether each is an object.
    stack: Vec<bool>,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    Value,
    /// After `[`.
    FirstItem,
    /// After `{`.
    FirstKey,
    Key,
    Colon,
    AfterItem,
    String(Quoted),
    KeyString(Quoted),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static str),
    Number(Digits),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Sign,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    Power,
}

/// Most levels of nested arrays and objects. Readers of the arguments have limits too (serde_json 128).
const DEPTH: usize = 100;

impl JsonText {
    pub(crate) fn new() -> JsonText {
        JsonText { stack: Vec::new(), at: At::Value }
    }

    /// Whether the next character is in a string, where tags do not count.
    pub(crate) fn in_string(&self) -> bool {
        matches!(self.at, At::String(_) | At::KeyString(_))
    }

    /// Consumes the next character and appends it to `to`, unless it does not belong to the value.
    pub(crate) fn push(&mut self, character: char, to: &mut String) -> Read {
        let read = self.step(character);
        if matches!(read, Read::More | Read::Done) {
            if self.in_string() && character < '\u{20}' {
                escape(to, character);
            } else {
                to.push(character);
            }
        }
        read
    }

    fn step(&mut self, character: char) -> Read {
        if let At::String(quoted) | At::KeyString(quoted) = &mut self.at {
            let is_key = |at: &At| matches!(at, At::KeyString(_));
            return match quoted.push(character) {
                QuotedRead::Bad => Read::Bad,
                QuotedRead::More | QuotedRead::Character(_) => Read::More,
                QuotedRead::End if is_key(&self.at) => self.go(At::Colon),
                QuotedRead::End => self.ended(),
            };
        }
        if let At::Number(digits) = self.at {
            return match digits.next(character) {
                Some(digits) => self.go(At::Number(digits)),
                None if !digits.complete() => Read::Bad,
                None => match self.ended() {
                    Read::Done => Read::Before,
                    _ => self.step(character),
                },
            };
        }
        if let At::Literal(rest) = self.at {
            return match rest.strip_prefix(character) {
                None => Read::Bad,
                Some("") => self.ended(),
                Some(rest) => self.go(At::Literal(rest)),
            };
        }
        if matches!(character, ' ' | '\t' | '\n' | '\r') {
            return Read::More;
        }
        match (&self.at, character) {
            (At::FirstKey | At::Key, '"') => self.go(At::KeyString(Quoted::default())),
            (At::Colon, ':') => self.go(At::Value),
            (At::AfterItem, ',') => {
                let next = if self.stack.last() == Some(&true) { At::Key } else { At::Value };
                self.go(next)
            }
            (At::FirstKey | At::AfterItem, '}') if self.stack.last() == Some(&true) => self.close(),
            (At::FirstItem | At::AfterItem, ']') if self.stack.last() == Some(&false) => self.close(),
            (At::Value | At::FirstItem, _) => self.value(character),
            _ => Read::Bad,
        }
    }

    fn value(&mut self, character: char) -> Read {
        let at = match character {
            '{' | '[' if self.stack.len() >= DEPTH => return Read::Bad,
            '{' => {
                self.stack.push(true);
                At::FirstKey
            }
            '[' => {
                self.stack.push(false);
                At::FirstItem
            }
            '"' => At::String(Quoted::default()),
            't' => At::Literal("rue"),
            'f' => At::Literal("alse"),
            'n' => At::Literal("ull"),
            '-' => At::Number(Digits::Sign),
            '0' => At::Number(Digits::Zero),
            '1'..='9' => At::Number(Digits::Integer),
            _ => return Read::Bad,
        };
        self.go(at)
    }

    fn go(&mut self, at: At) -> Read {
        self.at = at;
        Read::More
    }

    fn close(&mut self) -> Read {
        self.stack.pop();
        self.ended()
    }

    fn ended(&mut self) -> Read {
        self.at = At::AfterItem;
        if self.stack.is_empty() { Read::Done } else { Read::More }
    }
}

impl Digits {
    fn next(self, character: char) -> Option<Digits> {
        Some(match (self, character) {
            (Digits::Sign, '0') => Digits::Zero,
            (Digits::Sign, '1'..='9') | (Digits::Integer, '0'..='9') => Digits::Integer,
            (Digits::Zero | Digits::Integer, '.') => Digits::Point,
            (Digits::Point | Digits::Fraction, '0'..='9') => Digits::Fraction,
            (Digits::Zero | Digits::Integer | Digits::Fraction, 'e' | 'E') => Digits::Exponent,
            (Digits::Exponent, '+' | '-') => Digits::ExponentSign,
            (Digits::Exponent | Digits::ExponentSign | Digits::Power, '0'..='9') => Digits::Power,
            _ => return None,
        })
    }

    fn complete(self) -> bool {
        matches!(self, Digits::Zero | Digits::Integer | Digits::Fraction | Digits::Power)
    }
}

//! Detects calls as JSON without tags, at the beginning of an answer or after a call. A call has begun once
//! it names a tool.

use crate::shared::Shared;
use llguidance::Matcher;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// Most bytes up to the end of the name. The reader of calls has the same limit.
const LONGEST: usize = 512;

/// The text read at the beginning of an answer, or after a call, that may be the beginning of a call.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// All known tools; the grammar may not accept calls of every one.
    names: Arc<[String]>,
    /// `None` once no call can begin any more.
    read: Option<Vec<u8>>,
    behind: bool,
}

/// The verdict on the bytes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// Not known yet.
    Maybe,
    /// Not a call.
    Nothing,
    /// A call of this tool, in a `function` or not; its name ends at `at`.
    Call { tool: usize, nested: bool, at: usize },
}

impl Head {
    /// At the beginning of an answer.
    pub(crate) fn new(names: &Arc<[String]>) -> Head {
        Head { names: Arc::clone(names), read: Some(Vec::new()), behind: false }
    }

    /// Whether a call may still begin.
    pub(crate) fn is_open(&self) -> bool {
        self.read.is_some()
    }

    /// Starts over after a call, because another one may follow.
    pub(crate) fn go_on(&mut self) {
        (self.read, self.behind) = (Some(Vec::new()), true);
    }

    /// Takes the bytes of a token. If a call has begun, returns tokens for the grammar: the beginning of the
    /// call in the grammar's spelling, and the text after the name.
    pub(crate) fn take(&mut self, shared: &Shared, bytes: &[u8]) -> Option<Vec<u32>> {
        let read = self.read.as_mut()?;
        read.extend_from_slice(bytes);
        match begins(read, self.behind, &self.names) {
            Begins::Maybe => None,
            Begins::Nothing => {
                self.read = None;
                None
            }
            Begins::Call { tool, nested, at } => {
                let told = told(shared, &self.names[tool], nested, &read[at..]);
                self.read = None;
                Some(told)
            }
        }
    }

    /// The mask of the next token, if not all are allowed: it excludes those of the `quotes` that end a
    /// tool's name and continue in a way that `grammar` does not accept.
    pub(crate) fn mask(&self, shared: &Shared, quotes: &[u32], grammar: &mut Matcher) -> Option<TokenMask> {
        // At least two quotes come before the end of a name.
        let read = self.read.as_ref().filter(|read| read.contains(&b'"'))?;
        let mut next = Vec::with_capacity(LONGEST);
        let mut is_bad = |id: &u32| {
            next.clear();
            next.extend_from_slice(read);
            next.extend_from_slice(shared.text(*id));
            let Begins::Call { tool, nested, at } = begins(&next, self.behind, &self.names) else {
                return false;
            };
            let told = told(shared, &self.names[tool], nested, &next[at..]);
            !grammar.validate_tokens(&told).is_ok_and(|count| count == told.len())
        };
        let bad: Vec<u32> = quotes.iter().copied().filter(|id| is_bad(id)).collect();
        shared.all_but(&bad)
    }
}

/// The beginning of a call in the grammar's spelling, followed by the rest of the text.
fn told(shared: &Shared, name: &str, nested: bool, rest: &[u8]) -> Vec<u32> {
    let before = if nested { "{\"function\": {\"name\": \"" } else { "{\"name\": \"" };
    let mut told = shared.tokens(format!("{before}{name}\"").as_bytes());
    told.extend(shared.tokens(rest));
    told
}

/// Reads the beginning of a call: an object with any spacing, in an array or not, whose name is preceded by
/// no members other than a `type` or the `function` that contains it.
fn begins(bytes: &[u8], behind: bool, names: &[String]) -> Begins {
    let mut at = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let limit = at + LONGEST;
    let between: &[u8] = if behind { b",[];}" } else { b",[]" };
    if behind || bytes.get(at) == Some(&b'[') {
        let is_between = |byte: &&u8| byte.is_ascii_whitespace() || between.contains(byte);
        at += bytes[at..].iter().take_while(is_between).count();
    }
    let mut reader = Reader { bytes, at };
    match reader.object(names) {
        Err(Begins::Maybe) if bytes.len() > limit => Begins::Nothing,
        Err(begins) => begins,
        Ok(()) => Begins::Nothing,
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next character after spacing.
    fn next(&mut self) -> Result<u8, Begins> {
        self.at += self.bytes[self.at..].iter().take_while(|byte| b" \t\n\r".contains(byte)).count();
        self.at += 1;
        self.bytes.get(self.at - 1).copied().ok_or(Begins::Maybe)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Begins> {
        if self.next()? == wanted { Ok(()) } else { Err(Begins::Nothing) }
    }

    /// The rest of a string, unescaped; `None` if it is invalid and so not a name.
    fn string(&mut self) -> Result<Option<String>, Begins> {
        let (from, mut escaped) = (self.at - 1, false);
        let ends = |byte: &u8| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        };
        self.at += self.bytes[self.at..].iter().position(ends).ok_or(Begins::Maybe)? + 1;
        Ok(serde_json::from_slice(&self.bytes[from..self.at]).ok())
    }

    /// Reads an object up to its name; always ends with a verdict.
    fn object(&mut self, names: &[String]) -> Result<(), Begins> {
        self.expect(b'{')?;
        let mut nested = false;
        loop {
            // After a comma or an opening brace.
            let mut next = self.next()?;
            if next == b'"' {
                let key = self.string()?;
                self.expect(b':')?;
                match (key.as_deref(), self.next()?) {
                    (Some("name"), b'"') => {
                        let name = self.string()?;
                        let tool = names.iter().position(|it| Some(it) == name.as_ref());
                        let tool = tool.ok_or(Begins::Nothing)?;
                        return Err(Begins::Call { tool, nested, at: self.at });
                    }
                    (Some("type"), b'"') => drop(self.string()?),
                    (Some("function"), b'{') if !nested => {
                        nested = true;
                        continue;
                    }
                    _ => return Err(Begins::Nothing),
                }
                next = self.next()?;
            } else if next != b'}' {
                return Err(Begins::Nothing);
            }
            while next == b'}' && nested {
                nested = false;
                next = self.next()?;
            }
            if next != b',' {
                return Err(Begins::Nothing);
            }
        }
    }
}

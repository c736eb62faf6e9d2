//! Finds out that an answer, or what stands behind a call, begins with a call in JSON without a tag: it does
//! once it has a tool's name.

use crate::grammars::Shared;
use llguidance::Matcher;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// Most bytes before the name's end. The reader of calls has the same limit.
const LONGEST: usize = 512;

/// What was read of the beginning of an answer that may be a call, or of what stands behind one.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Of all tools that are known; the grammar need not take the calls of all.
    names: Arc<[String]>,
    /// `None` where no call can begin any more.
    read: Option<Vec<u8>>,
    behind: bool,
}

/// What bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// A call, or not: it is not known yet.
    Maybe,
    /// No call.
    Nothing,
    /// One of this tool, in a `function` or not, whose name ends here.
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

    /// A call is over, and another one may follow.
    pub(crate) fn go_on(&mut self) {
        (self.read, self.behind) = (Some(Vec::new()), true);
    }

    /// Takes the bytes of a token; if a call has begun, what the grammar is to be told of it: in its own
    /// words, and what follows the name.
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

    /// What may come next, where not anything may: not those of the `quotes` that end the name of a tool and
    /// go on as no call does that `grammar` takes.
    pub(crate) fn mask(&self, shared: &Shared, quotes: &[u32], grammar: &mut Matcher) -> Option<TokenMask> {
        // A name stands behind two quotes at least.
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

/// How the grammar has the beginning of a call, and what follows.
fn told(shared: &Shared, name: &str, nested: bool, rest: &[u8]) -> Vec<u32> {
    let before = if nested { "{\"function\": {\"name\": \"" } else { "{\"name\": \"" };
    let mut told = shared.tokens(format!("{before}{name}\"").as_bytes());
    told.extend(shared.tokens(rest));
    told
}

/// Reads the beginning of a call: an object in any spacing, in an array or not, that has no other members
/// before its name than a `type` or the `function` that has it.
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
    /// The next character, behind spacing.
    fn next(&mut self) -> Result<u8, Begins> {
        self.at += self.bytes[self.at..].iter().take_while(|byte| b" \t\n\r".contains(byte)).count();
        self.at += 1;
        self.bytes.get(self.at - 1).copied().ok_or(Begins::Maybe)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Begins> {
        if self.next()? == wanted { Ok(()) } else { Err(Begins::Nothing) }
    }

    /// The rest of a string, as it is meant; `None` of one that makes no sense, which is no name.
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

    /// An object up to its name: it ends with what begins, in any case.
    fn object(&mut self, names: &[String]) -> Result<(), Begins> {
        self.expect(b'{')?;
        let mut nested = false;
        loop {
            // Behind a comma, or an opening brace.
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

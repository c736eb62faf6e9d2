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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, behind: bool) -> Begins {
        begins(text.as_bytes(), behind, &["ab".to_owned(), "the".to_owned()])
    }

    /// The verdict on a text that ends with the quote behind a tool's name.
    fn call(text: &str, tool: usize, nested: bool) -> Begins {
        Begins::Call { tool, nested, at: text.len() }
    }

    #[test]
    fn a_call_begins_with_the_name_of_a_known_tool() {
        for (text, tool, nested) in [
            ("{\"name\": \"ab\"", 0, false),
            ("{\"name\":\"the\"", 1, false),
            (" \t\r\n{ \t\r\n\"name\" \t\r\n: \t\r\n\"ab\"", 0, false),
            ("[{\"name\": \"ab\"", 0, false),
            (" [\n[ , ] {\"name\": \"ab\"", 0, false),
            ("{\"type\": \"function\", \"name\": \"the\"", 1, false),
            ("{\"type\": \"\\q\", \"name\": \"ab\"", 0, false),
            ("{\"n\\u0061me\": \"\\u0061b\"", 0, false),
            ("{\"function\": {\"name\": \"ab\"", 0, true),
            ("{\"type\": \"x\", \"function\": {\"type\": \"y\", \"name\": \"ab\"", 0, true),
            ("{\"function\": {}, \"name\": \"ab\"", 0, false),
            ("{\"function\": {\"type\": \"x\"}, \"name\": \"the\"", 1, false),
        ] {
            assert_eq!(read(text, false), call(text, tool, nested), "{text}");
            assert_eq!(read(text, true), call(text, tool, nested), "{text}, behind a call");
            let more = format!("{text}, \"{{");
            assert_eq!(read(&more, false), call(text, tool, nested), "what is behind the name is not read");
            // Whatever is missing at the end may come.
            for (at, _) in text.char_indices() {
                assert_eq!(read(&text[..at], false), Begins::Maybe, "{}", &text[..at]);
            }
        }
    }

    #[test]
    fn anything_else_is_no_call() {
        for text in [
            "x",
            "\"name\"",
            "{name",
            "{1",
            "{}",
            "{},",
            "{,",
            "{\"name\" \"",
            "{\"name\": 5",
            "{\"name\": {",
            "{\"name\": \"xx\"",
            "{\"name\": \"a\\\"b\"",
            "{\"name\": \"ab\\\\\"",
            "{\"name\": \"a\\qb\"",
            "{\"id\": \"ab\"",
            "{\"type\": 5",
            "{\"type\": {",
            "{\"type\": \"x\"}",
            "{\"type\": \"x\";",
            "{\"function\": \"ab\"",
            "{\"function\": [",
            "{\"function\": {\"function\": {",
            "{\"function\": {}}",
            "{\"function\": {};",
            "{\"function\": {\"type\": \"x\"};",
        ] {
            assert_eq!(read(text, false), Begins::Nothing, "{text}");
            assert_eq!(read(text, true), Begins::Nothing, "{text}, behind a call");
        }
        assert_eq!(read("{\"name\": \"a\\\"", false), Begins::Maybe, "the quote is the name's");
    }

    #[test]
    fn separators_stand_before_a_call_where_one_came_before() {
        for (text, first) in [("[", true), (",", false), ("]", false), (";", false), ("}", false)] {
            let text = format!(" {text} {{\"name\": \"ab\"");
            let expected = if first { call(&text, 0, false) } else { Begins::Nothing };
            assert_eq!(read(&text, false), expected, "{text}");
            assert_eq!(read(&text, true), call(&text, 0, false), "{text}");
        }
        let text = "[ ; {\"name\": \"ab\"";
        assert_eq!((read(text, false), read(text, true)), (Begins::Nothing, call(text, 0, false)));
    }

    #[test]
    fn what_names_no_tool_for_long_is_no_call() {
        let spaced = |before: usize, within: usize| format!("{}{{{}", " ".repeat(before), " ".repeat(within));
        assert_eq!(read(&spaced(0, LONGEST - 1), false), Begins::Maybe);
        assert_eq!(read(&spaced(0, LONGEST), false), Begins::Nothing);
        assert_eq!(read(&spaced(700, LONGEST - 1), false), Begins::Maybe, "spacing before it is not counted");
        assert_eq!(read(&spaced(700, LONGEST), false), Begins::Nothing);
        let long = format!("{}\"name\": \"ab\"", spaced(0, LONGEST));
        assert_eq!(read(&long, false), call(&long, 0, false), "one that is named is one");
    }
}

//! A Rust file as far as its imports go, read without a parser: the files are as rustfmt leaves them.

use std::collections::{BTreeMap, BTreeSet};

/// What a file names and defines, its tests aside.
#[derive(Debug, Default)]
pub struct Source {
    /// Every path of a `use` and of the code.
    pub paths: Vec<Vec<String>>,
    /// What `use` brings in, by the name it has here.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Modules whose names `use` brings in with `*`.
    pub globs: Vec<Vec<String>>,
    /// Items at the file's top level.
    pub defines: BTreeSet<String>,
    /// Modules that are only there for tests.
    pub tests: BTreeSet<String>,
}

/// A name, `::`, or any other character, and whether it begins a line.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    first: bool,
}

/// Keywords that are followed by the name of an item.
const ITEMS: [&str; 9] = ["struct", "enum", "trait", "fn", "const", "static", "type", "mod", "macro_rules"];

impl Source {
    pub fn read(text: &str) -> Source {
        let mut source = Source::default();
        let tokens = source.without_tests(&tokens(text));
        let text = |at: usize| tokens.get(at).map_or("", |token: &Token| token.text);
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at].first {
                source.defines.extend(defined(&tokens[at..]).map(str::to_owned));
            }
            if text(at) == "use" {
                let (mut tree, mut end) = (Vec::new(), at + 1);
                while end < tokens.len() && text(end) != ";" {
                    tree.push(text(end));
                    end += 1;
                }
                source.add(&mut tree.into_iter().peekable(), &[]);
                at = end;
            } else if is_name(text(at)) && text(at + 1) == "::" {
                let mut path = vec![text(at).to_owned()];
                while text(at + 1) == "::" && is_name(text(at + 2)) {
                    path.push(text(at + 2).to_owned());
                    at += 2;
                }
                source.paths.push(path);
            }
            at += 1;
        }
        source
    }

    /// Adds what a tree of a `use` names, up to the comma or brace behind it.
    fn add<'a>(&mut self, tree: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>, before: &[String]) {
        let mut path = before.to_vec();
        while let Some(token) = tree.next() {
            match token {
                "::" => {}
                "{" => {
                    while tree.peek().is_some_and(|next| *next != "}") {
                        self.add(tree, &path);
                        if tree.peek() == Some(&",") {
                            tree.next();
                        }
                    }
                    tree.next();
                    return;
                }
                "*" => return self.globs.push(path),
                "self" if !path.is_empty() => {}
                name => path.push(name.to_owned()),
            }
            if tree.peek() == Some(&"as") {
                tree.next();
                let name = tree.next().unwrap_or_default();
                self.paths.push(path.clone());
                self.imports.insert(name.to_owned(), path);
                return;
            }
            if matches!(tree.peek(), None | Some(&("," | "}"))) {
                break;
            }
        }
        if let Some(name) = path.last() {
            self.paths.push(path.clone());
            self.imports.insert(name.clone(), path);
        }
    }

    /// The tokens outside of `#[cfg(test)]` items, of which modules are noted, and of what is quoted.
    fn without_tests<'a>(&mut self, tokens: &[Token<'a>]) -> Vec<Token<'a>> {
        let is = |at: usize, texts: &[&str]| {
            texts.iter().enumerate().all(|(i, text)| tokens.get(at + i).is_some_and(|it| it.text == *text))
        };
        let (mut kept, mut at) = (Vec::new(), 0);
        while at < tokens.len() {
            if is(at, &["#", "[", "cfg", "(", "test", ")", "]"]) {
                at += 7;
                while is(at, &["#"]) {
                    at = group_end(tokens, at + 1);
                }
                let name =
                    tokens[at..].iter().take(6).position(|it| it.text == "mod").map(|mod_| at + mod_ + 1);
                if let Some(name) = name.filter(|name| is(name + 1, &[";"])) {
                    self.tests.insert(tokens[name].text.to_owned());
                }
                at = item_end(tokens, at);
            } else if is(at, &["quote", "!"]) {
                at = group_end(tokens, at + 2);
            } else {
                kept.push(tokens[at]);
                at += 1;
            }
        }
        kept
    }
}

/// Where the item at `at` ends: behind its `;`, comma or body, or where what holds it does.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    let imports = tokens[at..].iter().take(5).any(|token| token.text == "use");
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" if !imports => return group_end(tokens, at),
            "{" | "(" | "[" => at = group_end(tokens, at),
            ";" | "," => return at + 1,
            "}" | ")" | "]" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Where what is between the bracket at `at` and its other half ends.
fn group_end(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The name of the item that begins here, if one does.
fn defined<'a>(tokens: &[Token<'a>]) -> Option<&'a str> {
    let mut texts = tokens.iter().map(|token| token.text).skip_while(|text| {
        matches!(*text, "pub" | "(" | ")" | "crate" | "super" | "in" | "unsafe" | "async" | "extern")
    });
    let keyword = texts.next().filter(|text| ITEMS.contains(text))?;
    texts.find(|text| *text != "!" && !(keyword == "const" && matches!(*text, "fn" | "unsafe")))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The tokens of a text without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    let after = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |i| from + i + end.len());
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let hashes = rest[word..].bytes().take_while(|byte| *byte == b'#').count();
        let raw = matches!(&rest[..word], "r" | "br" | "cr") && rest[word + hashes..].starts_with('"');
        at = if rest.starts_with("//") {
            after(at, "\n")
        } else if rest.starts_with("/*") {
            after(at, "*/")
        } else if raw {
            after(at + word + hashes + 1, &format!("\"{}", "#".repeat(hashes)))
        } else if c == '"' {
            let mut escaped = false;
            let end = rest[1..].bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            });
            at + end.map_or(rest.len(), |end| end + 2)
        } else if c == '\'' {
            let mut chars = rest[1..].char_indices();
            match (chars.next(), chars.next()) {
                (Some((_, '\\')), Some((escaped, c))) => after(at + 1 + escaped + c.len_utf8(), "'"),
                (Some(_), Some((end, '\''))) => at + end + 2,
                _ => at + 1,
            }
        } else {
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                c.len_utf8()
            };
            if !c.is_whitespace() {
                let first = at == 0 || text[..at].ends_with('\n');
                tokens.push(Token { text: &rest[..length], first });
            }
            at + length
        };
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_definitions_and_tests_are_told_apart() {
        let source = Source::read(
            "use a::{self, b::{C as D, e}, F};\npub(crate) use g::*;\n#[cfg(test)]\nuse h::I;\n\
             #[cfg(test)]\npub mod j;\npub(crate) const fn k<'a>() -> char { l::m('\"', '\\'', r#\"n::o\"#) }\n\
             struct P {\n    #[cfg(test)]\n    q: r::S,\n    t: u::V,\n}\n",
        );
        let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
        let paths = ["a", "a::b::C", "a::b::e", "a::F", "l::m", "u::V"].map(path);
        assert_eq!(source.paths, paths);
        assert_eq!(source.imports["D"], path("a::b::C"));
        assert_eq!(source.globs, [path("g")]);
        assert_eq!(source.defines, BTreeSet::from(["k", "P"].map(str::to_owned)));
        assert_eq!(source.tests, BTreeSet::from(["j".to_owned()]));
    }
}

//! Doc comments say more than one word, and more than the name of their item.

use super::files::{ROOTS, walk};
use super::read;
use std::path::Path;

/// Words that precede an item's name.
const KEYWORDS: [&str; 19] = [
    "pub",
    "crate",
    "super",
    "in",
    "const",
    "unsafe",
    "async",
    "extern",
    "C",
    "fn",
    "struct",
    "enum",
    "trait",
    "mod",
    "type",
    "static",
    "mut",
    "union",
    "macro_rules",
];
/// Words that add nothing to a name.
const FILLERS: [&str; 11] = ["a", "an", "the", "of", "its", "that", "which", "is", "are", "it", "this"];

pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for directory in ROOTS {
        walk(&root.join(directory), &mut |path| {
            if path.extension().is_some_and(|it| it == "rs") {
                let name = path.strip_prefix(root).unwrap_or(path).display();
                match read(path) {
                    Ok(text) => {
                        found.extend(
                            wrong(&text).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")),
                        );
                    }
                    Err(why) => found.push(why),
                }
            }
        });
    }
    found
}

/// The empty doc comments of a file, with their line numbers.
fn wrong(text: &str) -> Vec<(usize, &'static str)> {
    let mut lines = text.lines().map(str::trim).enumerate().peekable();
    let mut found = Vec::new();
    while let Some((at, line)) = lines.next() {
        let Some(first) = line.strip_prefix("///") else { continue };
        let mut comment = first.to_owned();
        while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("///")) {
            comment += line;
        }
        while lines.next_if(|(_, line)| line.starts_with("#[")).is_some() {}
        // A comment may continue at the next field.
        if comment.ends_with(',') {
            continue;
        }
        // One word of code, as a path or a value, says something.
        if comment.split_whitespace().count() == 1 && !comment.contains('`') {
            found.push((at + 1, "a doc comment of one word"));
        } else if lines.peek().is_some_and(|(_, item)| repeats(&comment, name(item))) {
            found.push((at + 1, "a doc comment that only repeats its item's name"));
        }
    }
    found
}

/// The name of the item that a line of code begins, or an empty one.
fn name(item: &str) -> &str {
    let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.find(|word| !KEYWORDS.contains(word)).unwrap_or_default()
}

/// Whether a comment has the words of a name in any order, singular or plural, and no other but fillers.
fn repeats(comment: &str, name: &str) -> bool {
    let words = |text: &str| {
        let words = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
        let telling = words.filter(|word| !word.is_empty() && !FILLERS.contains(&word.as_str()));
        let mut words: Vec<String> = telling.map(|word| word.trim_end_matches('s').to_owned()).collect();
        words.sort_unstable();
        words
    };
    // `QueueFull` is two words, as `queue_full`.
    let mut apart = String::new();
    for c in name.chars() {
        if c.is_uppercase() && apart.ends_with(char::is_lowercase) {
            apart.push(' ');
        }
        apart.push(c);
    }
    let said = words(comment);
    !said.is_empty() && said == words(&apart)
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn doc_comments_that_say_nothing_are_named() {
        let text = "/// Why.\npub reason: Reason,\n/// The queue is full.\n#[derive(Debug)]\nQueueFull {\n\
                    /// Tokens of a block.\npub(crate) fn block_tokens() {}\n/// Tokens that a block holds.\n\
                    block_tokens: usize,\n/// its name,\nname: String,\n/// `/v1/chat`.\nChat,\n/// Free places, ascending.\n\
                    places: Vec<u32>,\n";
        let root = planted(&[("runtime/a/src/lib.rs", text), ("docs/b.rs", "/// One.\nfn f() {}\n")]);
        let expected = [
            "runtime/a/src/lib.rs:1: a doc comment of one word",
            "runtime/a/src/lib.rs:3: a doc comment that only repeats its item's name",
            "runtime/a/src/lib.rs:6: a doc comment that only repeats its item's name",
        ];
        assert_eq!(breaches(root.path()), expected);
    }
}

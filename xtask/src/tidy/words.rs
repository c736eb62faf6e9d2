//! Words that this project dropped for the field's own, and the subjects of its commits.

use super::files::walk;
use super::read;
use std::path::Path;
use std::process::Command;

/// Directories whose comments must be free of these words.
const ROOTS: [&str; 12] = [
    "compiler",
    "runtime/cache/src",
    "runtime/device/src",
    "runtime/engine/src",
    "runtime/grammar/src",
    "runtime/model/src",
    "runtime/sampling/src",
    "runtime/server/src",
    "runtime/store/src",
    "runtime/text/src",
    "tests",
    "xtask",
];
/// Words no longer used, in lower case, and what to write instead.
const DROPPED: [(&str, &str); 11] = [
    ("by turns", "alternating"),
    ("a word on it", "a message"),
    ("draws lots", "samples"),
    ("whoever", "name the client, the caller or the thread"),
    ("somebody", "name the client, the caller or the thread"),
    ("held to", "constrained to, checked against"),
    ("of late", "recent, recently"),
    ("on their way", "in flight, in transfer"),
    ("pieces of prompts", "prefill chunks"),
    ("surplus", "discarded"),
    ("worked off", "processed, applied"),
];
/// How many recent commits are checked; older subjects have other forms.
const COMMITS: &str = "20";
/// Most characters of a subject.
const MAX_SUBJECT: usize = 72;

pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in ROOTS {
        walk(&root.join(name), &mut |path| {
            if path.extension().is_some_and(|it| it == "rs") {
                comments(root, path, &mut found);
            }
        });
    }
    found.extend(subjects(root).iter().filter_map(|subject| wrong_subject(subject)));
    found
}

/// Reports dropped words in a file's comments. It reads line by line, so it misses a phrase that a line end
/// splits.
fn comments(root: &Path, path: &Path, found: &mut Vec<String>) {
    let name = path.strip_prefix(root).unwrap_or(path).display();
    let text = match read(path) {
        Ok(text) => text,
        Err(why) => return found.push(why),
    };
    for (at, line) in text.lines().enumerate() {
        if !line.trim_start().starts_with("//") {
            continue;
        }
        let line = line.to_lowercase();
        for (word, right) in DROPPED.iter().filter(|(word, _)| has_word(&line, word)) {
            found.push(format!("{name}:{}: `{word}` in a comment; write: {right}", at + 1));
        }
    }
}

/// Whether a line contains a word or phrase as a whole, not as a part of longer words.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(at, _)| {
        !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next())
    })
}

/// The subjects of the last commits; none outside of a git checkout, as in a tarball.
fn subjects(root: &Path) -> Vec<String> {
    if !root.join(".git").exists() {
        return Vec::new();
    }
    let mut log = Command::new("git");
    log.args(["log", "--no-merges", "--format=%s", "-n", COMMITS]).current_dir(root);
    let Ok(output) = log.output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Why a commit's subject does not have the form `area: imperative`.
fn wrong_subject(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    let is_area = |area: &str| {
        !area.is_empty()
            && area.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ", -_./".contains(c))
    };
    if length > MAX_SUBJECT {
        return Some(format!("commit `{subject}`: {length} characters; a subject has at most {MAX_SUBJECT}"));
    }
    match subject.split_once(": ") {
        Some((area, rest)) if is_area(area) && !rest.is_empty() => None,
        _ => Some(format!("commit `{subject}`: a subject is `area: imperative`")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn dropped_words_are_named_with_the_right_ones() {
        let root = planted(&[
            (
                "runtime/engine/src/a.rs",
                "//! Whoever asks.\nlet surplus = 1; // not at the line's start\n    /// A surplus row\n",
            ),
            ("runtime/engine/src/deep/b.rs", "// Surpluses of later days, seen of late.\n"),
            ("runtime/engine/tests/c.rs", "// Whoever.\n"),
            ("runtime/other/src/d.rs", "// Whoever.\n"),
            ("compiler/tests/e.rs", "// So held to it.\n"),
            ("tests/src/f.rs", "// Each by turns.\n"),
        ]);
        let found = breaches(root.path());
        let begins = [
            "compiler/tests/e.rs:1: `held to`",
            "runtime/engine/src/a.rs:1: `whoever`",
            "runtime/engine/src/a.rs:3: `surplus` in a comment; write: discarded",
            "runtime/engine/src/deep/b.rs:1: `of late`",
            "tests/src/f.rs:1: `by turns`",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        assert!(found.iter().zip(begins).all(|(found, begin)| found.starts_with(begin)), "{found:?}");
    }

    #[test]
    fn subjects_are_an_area_and_what_is_done() {
        assert_eq!(wrong_subject("engine, cache: cut the queue out"), None);
        assert_eq!(wrong_subject(&format!("docs: {}", "x".repeat(66))), None);
        for wrong in [
            "cut the queue out",
            "Engine: cut the queue out",
            "engine:",
            &format!("docs: {}", "x".repeat(67)),
        ] {
            assert!(wrong_subject(wrong).is_some(), "{wrong}");
        }
    }
}

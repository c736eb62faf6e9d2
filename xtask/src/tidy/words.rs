//! Words that this project dropped for the field's own, and the subjects of its commits.

use super::files::{ROOTS, walk};
use super::read;
use crate::pages;
use std::path::Path;
use std::process::Command;

/// Endings of the sources whose comments are checked, and what begins a comment. CUDA sources are not
/// covered.
const COMMENTS: [(&str, &str); 5] = [("rs", "//"), ("cpp", "//"), ("js", "//"), ("py", "#"), ("sh", "#")];
/// The one source that has to quote the words.
const THIS: &str = "xtask/src/tidy/words.rs";
/// Begins a row of the index of decisions, whose titles stay.
const DECISION: &str = "| [0";
/// Words no longer used, in lower case, and what to write instead.
const DROPPED: [(&str, &str); 12] = [
    ("by turns", "alternating"),
    ("a word on", "a message, an error"),
    ("draws lots", "samples"),
    ("whoever", "name the client, the caller or the thread"),
    ("somebody", "name the client, the caller or the thread"),
    ("held to", "constrained to, checked against"),
    ("of late", "recent, recently"),
    ("on their way", "in flight, in transfer"),
    ("pieces of prompts", "prefill chunks"),
    ("piece of a prompt", "prefill chunk"),
    ("surplus", "discarded"),
    ("worked off", "processed, applied"),
];
/// How many recent commits are checked; older subjects have other forms.
const COMMITS: &str = "20";
/// Most characters of a subject.
const MAX_SUBJECT: usize = 72;

/// Lines of prose that belong together, in lower case, each with its number.
type Paragraph = Vec<(usize, String)>;

/// Checks comments and one-line strings of sources, the pages of the book except decisions, and commits.
pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for directory in ROOTS {
        walk(&root.join(directory), &mut |path| {
            let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
            let ending = path.extension().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
            let Some((_, mark)) = COMMENTS.iter().find(|(known, _)| *known == ending) else { return };
            if name == THIS {
                return;
            }
            match read(path) {
                Ok(text) => {
                    report(&name, "a comment", comments(&text, mark), &mut found);
                    if ending == "rs" && name.contains("/src/") {
                        report(&name, "a string", strings(&text), &mut found);
                    }
                }
                Err(why) => found.push(why),
            }
        });
    }
    for (_, name, text) in pages::all(root).filter(|(_, name, _)| !name.starts_with("docs/adr/")) {
        match text {
            Ok(text) => report(&name, "a page", page(&text), &mut found),
            Err(why) => found.push(why),
        }
    }
    found.extend(subjects(root).iter().filter_map(|subject| wrong_subject(subject)));
    found
}

/// Reports the dropped words of a file's paragraphs, in the order of its lines.
fn report(name: &str, place: &str, paragraphs: Vec<Paragraph>, found: &mut Vec<String>) {
    let mut hits: Vec<_> = paragraphs.iter().flat_map(|paragraph| dropped(paragraph)).collect();
    hits.sort_unstable();
    found.extend(
        hits.into_iter()
            .map(|(line, word, right)| format!("{name}:{line}: `{word}` in {place}; write: {right}")),
    );
}

/// The dropped words of a paragraph, across its line ends, each with its line and what to write instead.
fn dropped(paragraph: &Paragraph) -> Vec<(usize, &'static str, &'static str)> {
    let lines: Vec<&str> = paragraph.iter().map(|(_, line)| line.as_str()).collect();
    let text = lines.join(" ");
    let line_at = |at: usize| {
        let mut end = 0;
        let line = paragraph.iter().find(|(_, line)| {
            end += line.len() + 1;
            at < end
        });
        line.map_or(0, |(number, _)| *number)
    };
    let places = DROPPED
        .iter()
        .flat_map(|(word, right)| places(&text, word).into_iter().map(|at| (line_at(at), *word, *right)));
    places.collect()
}

/// Where a text contains a word or phrase as a whole, not as a part of longer words.
fn places(text: &str, word: &str) -> Vec<usize> {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let whole = |at: &usize| {
        !is_letter(text[..*at].chars().next_back()) && !is_letter(text[*at + word.len()..].chars().next())
    };
    text.match_indices(word).map(|(at, _)| at).filter(whole).collect()
}

/// Groups lines of prose, where `prose` finds any, into paragraphs.
fn paragraphs<'a>(text: &'a str, prose: impl Fn(&'a str) -> Option<&'a str>) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = prose(line.trim()).filter(|prose| !prose.is_empty()) else {
            goes_on = false;
            continue;
        };
        let line = (at + 1, prose.to_lowercase());
        match found.last_mut().filter(|_| goes_on) {
            Some(paragraph) => paragraph.push(line),
            None => found.push(vec![line]),
        }
        goes_on = true;
    }
    found
}

fn comments(text: &str, mark: &str) -> Vec<Paragraph> {
    paragraphs(text, |line| Some(line.strip_prefix(mark)?.trim_start_matches(['/', '!', '#']).trim()))
}

fn page(text: &str) -> Vec<Paragraph> {
    paragraphs(text, |line| Some(line).filter(|line| !line.starts_with(DECISION)))
}

/// The string literals of code, those that begin and end on one line.
fn strings(text: &str) -> Vec<Paragraph> {
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let literals = code.flat_map(|(at, line)| {
        let line = line.replace("\\\"", "'").to_lowercase();
        line.split('"')
            .skip(1)
            .step_by(2)
            .map(|literal| vec![(at + 1, literal.to_owned())])
            .collect::<Vec<_>>()
    });
    literals.collect()
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
            ("compiler/tests/a.rs", "// So held to it.\nlet held = \"held to\"; // not in src\n"),
            ("docs/README.md", "Of late.\n\n| [0028](adr/0028-a.md) | Calls are held to it |\n"),
            ("docs/adr/0028-a.md", "# 0028: Calls are held to it\n"),
            ("docs/page.md", "Requests on\ntheir way.\n"),
            ("README.md", "Somebody's.\n"),
            (
                "runtime/engine/src/b.rs",
                "//! Whoever asks.\nlet surplus = 1; // not at the line's start\n    /// A row is held\n    /// to it: \
                 surplus\n    say(\"a \\\"surplus\\\" row\");\n",
            ),
            ("runtime/engine/tests/c.rs", "// Surpluses of later days.\n"),
            ("templates/d.py", "# Each by\n# turns.\n"),
            ("tests/fixtures/e.rs", "// Whoever.\n"),
            ("tests/f.cpp", "// Worked off.\n"),
            ("xtask/src/tidy/words.rs", "// Whoever.\n"),
        ]);
        let expected = [
            "compiler/tests/a.rs:1: `held to` in a comment; write: constrained to, checked against",
            "runtime/engine/src/b.rs:1: `whoever` in a comment",
            "runtime/engine/src/b.rs:3: `held to` in a comment",
            "runtime/engine/src/b.rs:4: `surplus` in a comment",
            "runtime/engine/src/b.rs:5: `surplus` in a string",
            "templates/d.py:1: `by turns` in a comment",
            "tests/f.cpp:1: `worked off` in a comment",
            "README.md:1: `somebody` in a page",
            "docs/README.md:1: `of late` in a page",
            "docs/page.md:1: `on their way` in a page",
        ];
        let found = breaches(root.path());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(found, begin)| found.starts_with(begin)), "{found:?}");
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

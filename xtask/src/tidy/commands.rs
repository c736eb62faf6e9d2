//! Commands in the book stand in blocks that can be run, and exist: verbs and flags of `cargo xtask`, groups
//! of `run.py --only` and tests of `cargo test --test`.

use super::files::{ROOTS, walk};
use super::read;
use crate::{Cli, pages};
use clap::CommandFactory;
use std::collections::BTreeSet;
use std::path::Path;

/// The script whose groups of checks `--only` names.
const RUN: &str = "xtask/src/gpu/run.py";

pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let (groups, tests) = (groups(root), tests(root));
    for (_, name, text) in pages::all(root) {
        match text {
            Err(why) => found.push(why),
            Ok(text) => {
                let (_, mistakes) = pages::commands(&text);
                let wrong = [mistakes, wrong(&text), unknown(&text, &groups, &tests)].concat();
                found.extend(wrong.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
            }
        }
    }
    found
}

/// Keys of `GROUPS` in [`RUN`], and `unpack`, which it takes too.
fn groups(root: &Path) -> BTreeSet<String> {
    let text = read(&root.join(RUN)).unwrap_or_default();
    let table =
        text.split_once("GROUPS = {").and_then(|(_, rest)| rest.split_once('}')).unwrap_or_default().0;
    let keys = table.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once('"'));
    keys.map(|(key, _)| key.to_owned()).chain(["unpack".to_owned()]).collect()
}

/// Integration tests of all crates: `tests/NAME.rs` and `tests/NAME/main.rs`.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for directory in ROOTS {
        walk(&root.join(directory), &mut |path| {
            let target = if path.ends_with("main.rs") { path.parent().unwrap_or(path) } else { path };
            let in_tests = target.parent().is_some_and(|parent| parent.ends_with("tests"));
            if in_tests && path.extension().is_some_and(|it| it == "rs") {
                names.extend(target.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        });
    }
    names
}

/// Groups and tests that a page names and that do not exist, with line numbers.
fn unknown(text: &str, groups: &BTreeSet<String>, tests: &BTreeSet<String>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (option, known, what) in
            [("run.py --only ", groups, "`run.py` has no group"), ("--test ", tests, "there is no test")]
        {
            for rest in line.split(option).skip(1) {
                let end = |c: char| !c.is_alphanumeric() && !"_-,".contains(c);
                let names = rest.split(end).next().unwrap_or_default().split(',');
                let missing = names.filter(|name| !name.is_empty() && !known.contains(*name));
                found.extend(missing.map(|name| (at + 1, format!("{what} `{name}`"))));
            }
        }
    }
    found
}

/// The lines of a page with their numbers, those that go on behind a `\\` as one.
fn whole(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let (begun, after) = line.strip_suffix('\\').map_or((line, false), |begun| (begun, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, last)) => last.push_str(begun),
            None => lines.push((at + 1, begun.to_owned())),
        }
        goes_on = after;
    }
    lines
}

/// What is wrong with the `cargo xtask` commands of a page, with line numbers.
fn wrong(text: &str) -> Vec<(usize, String)> {
    let cli = Cli::command();
    let mut found = Vec::new();
    for (at, line) in whole(text) {
        for command in line.split("cargo xtask ").skip(1) {
            // A command ends with its quotation or where the next command begins.
            let command = command.split(['`', '|', ';', '&', '#', '(', ')']).next().unwrap_or_default();
            let mut words = command.split_whitespace().map(|word| word.trim_end_matches([',', '.', ':']));
            // A placeholder such as `<verb>` stands for any.
            let Some(verb) = words.next().filter(|verb| verb.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let Some(mut known) = cli.find_subcommand(verb) else {
                found.push((at, format!("there is no verb `{verb}`")));
                continue;
            };
            while let Some(inner) = words.clone().next().and_then(|word| known.find_subcommand(word)) {
                known = inner;
                words.next();
            }
            // What follows `--` belongs to another program.
            for flag in words.take_while(|word| *word != "--").filter_map(|word| word.strip_prefix("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                let is = |argument: &clap::Arg| argument.get_long() == Some(flag);
                if flag != "help" && !known.get_arguments().any(is) {
                    found.push((at, format!("`cargo xtask {verb}` has no flag --{flag}")));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::{breaches, wrong};

    #[test]
    fn verbs_and_flags_that_there_are_not_are_named() {
        let text = "`cargo xtask build --target a/b/c`, cargo xtask test --bless.\n\
                    `cargo xtask <verb>`; cargo xtask bild | cargo xtask list --al\n\
                    cargo xtask run -- --port 1 `--nothing`; cargo xtask new model a --out b\n\
                    ```console\n$ cargo xtask list \\\n    --all --jso && server x --y\n```\n";
        let expected = [
            (2, "there is no verb `bild`"),
            (2, "`cargo xtask list` has no flag --al"),
            (5, "`cargo xtask list` has no flag --jso"),
        ];
        assert_eq!(wrong(text), expected.map(|(line, what)| (line, what.to_owned())));
    }

    #[test]
    fn groups_and_tests_that_there_are_not_are_named() {
        let root = planted(&[
            ("README.md", ""),
            (super::RUN, "GROUPS = {\n    \"serving\": serving.run,\n    \"logits\": logits.run,\n}\n"),
            ("tests/tests/soak.rs", ""),
            ("runtime/a/tests/http/main.rs", ""),
            ("runtime/a/tests/http/errors.rs", ""),
            (
                "docs/a.md",
                "`run.py --only serving,logits`, `run.py --only far,unpack`\n`cargo test --test soak -- --ignored`, \
                 `cargo test -p a --test http`, `--test errors`.\n\n    cargo xtask list\n",
            ),
        ]);
        let expected = [
            "docs/a.md:4: `cargo xtask list`: a command stands in a ```console block, behind `$ `",
            "docs/a.md:1: `run.py` has no group `far`",
            "docs/a.md:2: there is no test `errors`",
        ];
        assert_eq!(breaches(root.path()), expected);
    }
}

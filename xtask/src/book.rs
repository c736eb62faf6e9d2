//! `cargo xtask book`: the pages of docs/ as a book of HTML with its links checked, and the commands of pages
//! run.

mod expected;
mod print;
mod shell;

use crate::pages::{self, Block, Marker, Mistake};
use crate::paths;
use clap::Args;
use shell::Shell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Options {
    /// Directory to write the book into: DIR/html/index.html.
    #[arg(long, value_name = "DIR", default_value = "target/book")]
    out: PathBuf,
    /// Run the commands of pages, too, and compare what they print.
    #[arg(long)]
    run: bool,
    /// Also those that build servers, fetch weights or take minutes.
    #[arg(long, requires = "run")]
    slow: bool,
    /// Run the commands of this page alone, named as `docs/operating.md` or `operating`.
    #[arg(long, value_name = "NAME", requires = "run")]
    page: Option<String>,
}

/// How long a command may take, and one of a slow block.
const PATIENCE: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(3600)];

pub fn book(options: Options) -> Result<(), String> {
    let root = paths::root();
    let index = print::book(&root, &options.out)?;
    println!("{}", index.display());
    if options.run { run(&root, options.slow, options.page.as_deref()) } else { Ok(()) }
}

/// The check of `cargo xtask test`: the book, its links, and the commands that are quick.
pub fn check() -> Result<(), String> {
    book(Options { out: paths::root().join("target/book"), run: true, slow: false, page: None })
}

/// Runs the commands of all pages, or of one.
fn run(root: &Path, slow: bool, only: Option<&str>) -> Result<(), String> {
    let (mut failed, mut names) = (Vec::new(), Vec::new());
    for (_, name, text) in pages::all(root) {
        let stem = name.rsplit('/').next().and_then(|file| file.strip_suffix(".md")).unwrap_or_default();
        if only.is_some_and(|only| only != name && only != stem) {
            names.push(name);
            continue;
        }
        let (blocks, mistakes) = pages::commands(&text?);
        failed.extend(mistakes.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
        if blocks.is_empty() {
            continue;
        }
        let began = Instant::now();
        let (ran, result) = page(root, &blocks, slow);
        let all: usize = blocks.iter().map(|block| block.commands.len()).sum();
        println!("{name}: {ran} of {all} commands ran, {:.0} s", began.elapsed().as_secs_f64());
        failed.extend(result.err().map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    match only {
        Some(only) if names.len() == pages::all(root).count() => {
            Err(format!("there is no page `{only}`; there are {}", names.join(", ")))
        }
        _ if failed.is_empty() => Ok(()),
        _ => Err(failed.join("\n\n")),
    }
}

/// Runs the commands of a page in its own shell and directory, up to the first that fails, and says how many
/// ran.
fn page(root: &Path, blocks: &[Block], slow: bool) -> (usize, Result<(), Mistake>) {
    let wanted: Vec<&Block> = blocks.iter().filter(|block| block.runs(slow)).collect();
    let Some(first) = wanted.first() else { return (0, Ok(())) };
    let mut shell = match Shell::start(root) {
        Ok(shell) => shell,
        Err(why) => return (0, Err((first.line, why))),
    };
    let mut ran = 0;
    for block in wanted {
        let patience = PATIENCE[usize::from(block.has(Marker::Slow))];
        for command in &block.commands {
            let result = if block.has(Marker::Background) {
                shell.begin(command, patience)
            } else {
                shell.run(command, patience)
            };
            ran += 1;
            if let Err(why) = result {
                return (ran, Err((command.line, format!("`{}` {why}", command.text))));
            }
        }
    }
    (ran, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn a_page_has_one_shell_and_a_wrong_output_is_named_by_page_and_line() {
        let text = "\
```console
$ cd docs; export NUMBER=7; ls
a.md
$ printf 'one\\ntwo\\n%s\\n' $NUMBER
one
…
7
$ cd ..; test ! -e made && echo > made
```
<!-- run: background -->
```console
$ echo begun; sleep 60
begun
```
<!-- run: gpu -->
```console
$ exit 1
```
<!-- run: slow -->
```console
$ exit 2
```
";
        let root = planted(&[("docs/a.md", text), ("README.md", "```console\n$ echo no\nyes\n```\n")]);
        let (blocks, mistakes) = pages::commands(text);
        assert_eq!(mistakes, []);
        assert_eq!(page(root.path(), &blocks, false), (4, Ok(())));
        let (ran, result) = page(root.path(), &blocks, true);
        let (line, why) = result.expect_err("the shell ends");
        assert_eq!((ran, line), (5, 21));
        assert!(why.contains("`exit 2` ended the page's shell"), "{why}");

        let why = run(root.path(), false, Some("README")).expect_err("the output differs");
        assert_eq!(why, "README.md:2: `echo no` printed no line like `yes`\nprinted:\nno\n");
        let why = run(root.path(), false, Some("b")).expect_err("no such page");
        assert_eq!(why, "there is no page `b`; there are README.md, docs/a.md");
        assert_eq!(run(root.path(), false, Some("docs/a.md")), Ok(()));
    }

    #[test]
    fn a_command_that_fails_or_takes_too_long_fails_the_page() {
        let root = planted(&[]);
        let mut shell = Shell::start(root.path()).expect("bash is there");
        let command = |text: &str, expected: &[&str]| pages::Command {
            line: 1,
            text: text.to_owned(),
            expected: expected.iter().map(|&line| line.to_owned()).collect(),
        };
        let patience = Duration::from_secs(20);
        let why = shell.run(&command("echo why >&2; (exit 3)", &[]), patience).expect_err("it fails");
        assert_eq!(why, "ended with 3\nprinted:\n\nstandard error:\nwhy\n");
        let why = shell.run(&command("echo 'open", &[]), patience).expect_err("a quotation is open");
        assert!(why.starts_with("ended with "), "{why}");
        let why = shell.run(&command("false | cat", &[]), patience).expect_err("what is piped failed");
        assert!(why.starts_with("ended with 1"), "{why}");
        assert_eq!(shell.run(&command("echo here", &["here"]), patience), Ok(()));
        let why = shell.begin(&command("echo gone; exit 4", &["there"]), patience).expect_err("it ended");
        assert!(why.starts_with("ended with 4"), "{why}");
        let why = shell.run(&command("sleep 60", &[]), Duration::from_millis(50)).expect_err("it is slow");
        assert!(why.starts_with("took longer than 0.05 s"), "{why}");
    }
}

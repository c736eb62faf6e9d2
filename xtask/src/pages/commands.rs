//! The commands of a page: its fenced `console` blocks.
//!
//! A line `$ command` is a command, with what follows a `\` at its end; the lines below it are what it is
//! expected to print, as `cargo xtask book` reads them. Without any a command has only to succeed. A comment
//! `<!-- run: slow background -->` before a block says what its commands need.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A line of a page, counted from 1, and what is wrong there.
pub type Mistake = (usize, String);

/// What the commands of a block need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A card: they are not run here.
    Gpu,
    /// Minutes, a server to be built or weights to be fetched: they run only where that is asked for.
    Slow,
    /// They go on until the page ends, and the page goes on once they have printed what is expected.
    Background,
    /// Values in place of placeholders: they are not run.
    Example,
    /// Other programs or machines than the checks have, or hours: they are not run.
    Elsewhere,
}

const MARKERS: [(&str, Marker); 5] = [
    ("gpu", Marker::Gpu),
    ("slow", Marker::Slow),
    ("background", Marker::Background),
    ("example", Marker::Example),
    ("elsewhere", Marker::Elsewhere),
];

/// The language of blocks of commands.
const LANGUAGE: &str = "console";
/// What lines of commands begin with. In a block of another language that makes one a command nobody runs.
const PROGRAMS: [&str; 13] = [
    "$ ",
    "cargo ",
    "server ",
    "monomorph ",
    "dist/",
    "target/",
    "curl ",
    "docker ",
    "python3 ",
    ".venv/",
    "export ",
    "git ",
    "sh ",
];

/// Commands that stand together.
#[derive(Debug)]
pub struct Block {
    /// The line of its first command.
    pub line: usize,
    /// What they need.
    pub markers: Vec<Marker>,
    /// In the order of the page.
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// Its line in the page.
    pub line: usize,
    /// What a shell is given.
    pub text: String,
    /// What it prints.
    pub expected: Vec<String>,
}

impl Block {
    /// Whether it has this marker.
    pub fn has(&self, marker: Marker) -> bool {
        self.markers.contains(&marker)
    }

    /// Whether its commands are run, where slow ones are or are not.
    pub fn runs(&self, slow: bool) -> bool {
        let never = [Marker::Gpu, Marker::Example, Marker::Elsewhere];
        !never.into_iter().any(|marker| self.has(marker)) && (slow || !self.has(Marker::Slow))
    }
}

/// The blocks of commands of a page, and what is wrong with them.
pub fn commands(text: &str) -> (Vec<Block>, Vec<Mistake>) {
    let (mut blocks, mut mistakes) = (Vec::new(), Vec::new());
    let line_at = |offset: usize| text[..offset].matches('\n').count() + 1;
    // The markers of the comment just before, and its line.
    let mut marked: Option<(usize, Vec<Marker>)> = None;
    // The line, language and text of the block that is being read.
    let mut open: Option<(usize, String, String)> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                open = Some((line_at(range.start) + 1, language.to_string(), String::new()));
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => {
                open = Some((line_at(range.start), String::new(), String::new()));
            }
            Event::Text(code) if open.is_some() => {
                open.iter_mut().for_each(|(_, _, text)| text.push_str(&code));
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some((line, language, code)) = open.take() else { continue };
                let before = marked.take();
                if language == LANGUAGE {
                    let markers = before.map(|(_, markers)| markers).unwrap_or_default();
                    let commands = lines(line, &code, &mut mistakes);
                    let silent = commands.iter().find(|command| command.expected.is_empty());
                    if let Some(command) = silent.filter(|_| markers.contains(&Marker::Background)) {
                        let what = "say below it what it prints once the page can go on";
                        mistakes.push((command.line, format!("`{}`: {what}", command.text)));
                    }
                    blocks.push(Block { line, markers, commands });
                } else {
                    mistakes.extend(before.map(|(line, _)| (line, lost())));
                    mistakes.extend(outside(line, &code));
                }
            }
            Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
            Event::Html(html) => match markers(&html) {
                None => {}
                Some(Ok(markers)) => marked = Some((line_at(range.start), markers)),
                Some(Err(what)) => mistakes.push((line_at(range.start), what)),
            },
            _ => mistakes.extend(marked.take().map(|(line, _)| (line, lost()))),
        }
    }
    mistakes.extend(marked.map(|(line, _)| (line, lost())));
    (blocks, mistakes)
}

fn lost() -> String {
    format!("no ```{LANGUAGE} block follows this marker")
}

/// The markers of a comment, if it has any.
fn markers(html: &str) -> Option<Result<Vec<Marker>, String>> {
    let words = html.trim().strip_prefix("<!--")?.trim_start().strip_prefix("run:")?.strip_suffix("-->")?;
    let known = |word| {
        let found = MARKERS.iter().find(|(name, _)| *name == word);
        found.map(|(_, marker)| *marker).ok_or_else(|| {
            format!("`{word}` is no marker; there are {}", MARKERS.map(|(name, _)| name).join(", "))
        })
    };
    Some(words.split_whitespace().map(known).collect())
}

/// The commands of a block that begins at this line.
fn lines(line: usize, code: &str, mistakes: &mut Vec<Mistake>) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut goes_on = false;
    for (at, text) in code.lines().enumerate().map(|(at, text)| (line + at, text.trim_end())) {
        match (text.strip_prefix("$ "), commands.last_mut()) {
            (_, Some(command)) if goes_on => {
                command.text.push('\n');
                command.text.push_str(text);
            }
            (Some(command), _) => {
                commands.push(Command { line: at, text: command.to_owned(), expected: Vec::new() });
            }
            (None, Some(command)) => {
                command.expected.push(text.to_owned());
                continue;
            }
            (None, None) => {
                mistakes
                    .push((at, format!("`{text}`: a ```{LANGUAGE} block begins with `$ ` and a command")));
                return commands;
            }
        }
        goes_on = text.ends_with('\\');
    }
    if commands.is_empty() {
        mistakes.push((line, format!("a ```{LANGUAGE} block without a command")));
    }
    commands
}

/// Commands in a block of another language.
fn outside(line: usize, code: &str) -> Vec<Mistake> {
    let is_command = |text: &str| PROGRAMS.iter().any(|program| text.starts_with(program));
    let found = code.lines().enumerate().filter(|(_, text)| is_command(text));
    found
        .map(|(at, text)| {
            (line + at, format!("`{text}`: a command stands in a ```{LANGUAGE} block, behind `$ `"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_lines_continuations_outputs_and_markers() {
        let text = "\
# Page

Run `cargo xtask list`:

```console
$ cargo xtask list \\
      --all
cpu/…

…
$ cd x   # a comment
```

<!-- a remark -->
<!-- run: slow background -->
```console
$ server serve
http://…
```

    [table]
    key = 1

1. In a list:

   <!-- run: gpu -->
   ```console
   $ server bench
   ```
";
        let (blocks, mistakes) = commands(text);
        assert_eq!(mistakes, []);
        let command = |line, text: &str, expected: &[&str]| Command {
            line,
            text: text.to_owned(),
            expected: expected.iter().map(|&line| line.to_owned()).collect(),
        };
        let first = [
            command(6, "cargo xtask list \\\n      --all", &["cpu/…", "", "…"]),
            command(11, "cd x   # a comment", &[]),
        ];
        assert_eq!(blocks[0].commands, first);
        assert_eq!(blocks[1].commands, [command(17, "server serve", &["http://…"])]);
        assert_eq!(blocks[1].markers, [Marker::Slow, Marker::Background]);
        assert_eq!(blocks[2].commands, [command(28, "server bench", &[])]);
        let runs = |slow| blocks.iter().map(move |block| block.runs(slow)).collect::<Vec<_>>();
        assert_eq!(runs(false), [true, false, false]);
        assert_eq!(runs(true), [true, true, false]);
    }

    #[test]
    fn a_block_that_nobody_could_run_is_named() {
        for (text, line, expected) in [
            ("<!-- run: gpuu -->\n```console\n$ a\n```\n", 1, "`gpuu` is no marker; there are gpu, slow, "),
            ("<!-- run: gpu -->\n\nText.\n", 1, "no ```console block follows this marker"),
            ("<!-- run: gpu -->\n```toml\na = 1\n```\n", 1, "no ```console block follows this marker"),
            ("Text.\n\n<!-- run: gpu -->\n", 3, "no ```console block follows this marker"),
            ("```console\nls\n```\n", 2, "`ls`: a ```console block begins with `$ ` and a command"),
            ("```console\n```\n", 2, "a ```console block without a command"),
            ("Text:\n\n    a = 1\n    cargo xtask list\n", 4, "`cargo xtask list`: a command stands in a "),
            ("```\ncurl x\n```\n", 2, "`curl x`: a command stands in a ```console block, behind `$ `"),
            ("<!-- run: background -->\n```console\n$ a\n```\n", 3, "`a`: say below it what it prints "),
        ] {
            let (_, mistakes) = commands(text);
            let [(at, what)] = &mistakes[..] else { panic!("{text}: {mistakes:?}") };
            assert_eq!(*at, line, "{text}: {what}");
            assert!(what.starts_with(expected), "{text}: {what}");
        }
    }
}

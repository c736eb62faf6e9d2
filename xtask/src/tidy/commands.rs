//! Every `cargo xtask` command in the book exists: its verb and its flags.

use super::docs;
use crate::Cli;
use clap::CommandFactory;
use std::path::Path;

pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (_, name, text) in docs::book(root) {
        match text {
            Err(why) => found.push(why),
            Ok(text) => {
                found.extend(wrong(&text).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
            }
        }
    }
    found
}

/// What is wrong with the command lines of a page, with line numbers.
fn wrong(text: &str) -> Vec<(usize, String)> {
    let cli = Cli::command();
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for command in line.split("cargo xtask ").skip(1) {
            // A command ends with its quotation or where the next command begins.
            let command = command.split(['`', '|', ';', '#', '(', ')']).next().unwrap_or_default();
            let mut words = command.split_whitespace().map(|word| word.trim_end_matches([',', '.', ':']));
            // A placeholder such as `<verb>` stands for any.
            let Some(verb) = words.next().filter(|verb| verb.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let Some(known) = cli.find_subcommand(verb) else {
                found.push((at + 1, format!("there is no verb `{verb}`")));
                continue;
            };
            // What follows `--` belongs to another program.
            for flag in words.take_while(|word| *word != "--").filter_map(|word| word.strip_prefix("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                let is = |argument: &clap::Arg| argument.get_long() == Some(flag);
                if flag != "help" && !known.get_arguments().any(is) {
                    found.push((at + 1, format!("`cargo xtask {verb}` has no flag --{flag}")));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::wrong;

    #[test]
    fn verbs_and_flags_that_there_are_not_are_named() {
        let text = "`cargo xtask build --target a/b/c`, cargo xtask test --bless.\n\
                    `cargo xtask <verb>`; cargo xtask bild | cargo xtask list --al\n\
                    cargo xtask run -- --port 1 `--nothing`\n";
        let expected = [(2, "there is no verb `bild`"), (2, "`cargo xtask list` has no flag --al")];
        assert_eq!(wrong(text), expected.map(|(line, what)| (line, what.to_owned())));
    }
}

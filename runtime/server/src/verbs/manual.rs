//! `completions` and `manual`: the command line for shells and for `man`, from what reads it.

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{ErrorKind, Write};

/// Flags of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to read it.
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
    /// What the binary is called where it is installed.
    #[arg(long, value_name = "NAME", default_value = "server")]
    name: String,
}

/// Flags of `manual`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManualArgs {
    /// The verb that the page is of [default: the page of all].
    #[arg(value_name = "VERB")]
    verb: Option<String>,
}

/// Prints a completion script of this command line.
///
/// # Errors
/// When standard output takes none.
pub(crate) fn completions(command: &Command, args: &CompletionsArgs) -> Result<(), String> {
    // Scripts would offer what the help hides.
    let verbs = command.get_subcommands().filter(|it| !it.is_hide_set()).cloned();
    let mut shown = Command::new("server").version(env!("CARGO_PKG_VERSION")).subcommands(verbs);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown, &args.name, &mut script);
    print(&script)
}

/// Prints a manual page of this command line as `man -l -` reads it.
///
/// # Errors
/// When there is no such verb, or standard output takes none.
pub(crate) fn manual(mut command: Command, args: &ManualArgs) -> Result<(), String> {
    command.build();
    let page = match &args.verb {
        None => &command,
        Some(verb) => command.find_subcommand(verb).filter(|it| !it.is_hide_set()).ok_or_else(|| {
            let verbs = command.get_subcommands().filter(|it| !it.is_hide_set());
            let verbs: Vec<&str> = verbs.map(Command::get_name).collect();
            format!("manual {verb}: there is no such verb; there are {}", verbs.join(", "))
        })?,
    };
    let mut written = Vec::new();
    Man::new(page.clone()).render(&mut written).map_err(|error| error.to_string())?;
    print(&written)
}

/// Prints a text. A reader that has gone is no error.
fn print(text: &[u8]) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

/// `docs/command-line.md` is written here, from what reads the command line.
#[cfg(test)]
mod tests {
    use crate::verbs::cli::Cli;
    use clap::{Arg, CommandFactory};
    use std::path::Path;

    const HEAD: &str = "# The command line

Every verb of a built server with its flags: what `server VERB --help` says, which is where this page comes from. A test compares them; `MONOMORPH_BLESS=1 cargo test -p \
                        monomorph-server --lib manual` writes it anew. `server completions bash` (or `elvish`, `fish`, `powershell`, `zsh`) prints a completion script, `server manual [VERB]` a manual page for `man -l -`. What the flags of \
                        `serve` mean for those who run a server stands in [operating.md](operating.md).
";

    /// A row of a table: the flag, what it does, and its default.
    fn row(arg: &Arg) -> String {
        let values = arg.get_value_names().unwrap_or_default();
        let value = values.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(" ");
        let takes = arg.get_action().takes_values();
        let name = match arg.get_long() {
            Some(long) if takes => format!("`--{long} {value}`"),
            Some(long) => format!("`--{long}`"),
            None => format!("`{value}`"),
        };
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        let aliases: String = aliases.iter().map(|alias| format!(", `--{alias}`")).collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults = arg.get_default_values().iter().map(|it| it.to_string_lossy());
        let default = if takes { defaults.collect::<Vec<_>>().join(",") } else { String::new() };
        let cells = [name + &aliases, help, default].map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        let [name, help, default] = cells;
        format!("| {name} | {help} | {default} |\n")
    }

    fn page() -> String {
        let mut command = Cli::command();
        command.build();
        let mut page = HEAD.to_owned();
        for verb in command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            page += &format!("\n## {}\n\n{about}\n", verb.get_name());
            let args: Vec<&Arg> =
                verb.get_arguments().filter(|arg| arg.get_id() != "help" && !arg.is_hide_set()).collect();
            let mut headings: Vec<Option<&str>> = Vec::new();
            for arg in &args {
                if !headings.contains(&arg.get_help_heading()) {
                    headings.push(arg.get_help_heading());
                }
            }
            for heading in headings {
                let title = heading.map_or_else(String::new, |heading| format!("\n**{heading}**\n"));
                page += &format!("{title}\n| | | default |\n|---|---|---|\n");
                page.extend(args.iter().filter(|arg| arg.get_help_heading() == heading).map(|arg| row(arg)));
            }
        }
        page
    }

    #[test]
    fn the_page_of_the_book_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-line.md");
        let page = page();
        if std::env::var_os("MONOMORPH_BLESS").is_some() {
            std::fs::write(&path, &page).expect("the book is writable");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page,
            "docs/command-line.md is not what the command line is: MONOMORPH_BLESS=1 writes it"
        );
    }

    /// A flag of `serve` without a section stands before all of them, where nobody looks.
    #[test]
    fn every_flag_of_serve_is_in_a_section() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("a verb");
        let without =
            serve.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_help_heading().is_none());
        let without: Vec<&str> =
            without.map(|arg| arg.get_id().as_str()).filter(|id| *id != "help").collect();
        assert!(without.is_empty(), "{without:?}");
        let of = |id: &str| {
            let arg = serve.get_arguments().find(|arg| arg.get_id() == id).expect("a flag");
            arg.get_help_heading().expect("a section")
        };
        for (id, heading) in [
            ("weights", "Model"),
            ("max_body", "Clients"),
            ("hold_calls", "Answers"),
            ("context", "Memory"),
            ("swap_space", "Disks and swap"),
            ("rank", "Devices and hosts"),
            ("tbt_ms", "Scheduling"),
            ("dump", "Watching and stopping"),
        ] {
            assert_eq!(of(id), heading, "{id}");
        }
    }
}

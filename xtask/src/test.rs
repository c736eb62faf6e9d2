//! `cargo xtask test`: every check there is, on a fresh machine too.

use crate::{TargetOptions, fetch, licences, paths};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(Args)]
pub struct Options {
    /// Accept what changed: rewrite the committed goldens instead of comparing with them.
    #[arg(long)]
    bless: bool,
}

/// One check: its name, and what it does.
type Check<'a> = (&'static str, Box<dyn Fn() -> Result<(), String> + 'a>);

pub fn test(options: Options) -> Result<(), String> {
    let target = TargetOptions { target: crate::DEFAULT_TARGET.to_owned(), targets_dir: None };
    let weights = fetch::weights(&target)?;
    let checks: Vec<Check> = vec![
        ("format", Box::new(|| cargo(&["fmt", "--all", "--check"], &[]))),
        ("clippy", Box::new(|| cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[]))),
        ("licences", Box::new(licences::check)),
        ("tests", Box::new(|| {
            let mut environment = vec![("MONOMORPH_TEST_WEIGHTS", weights.as_os_str())];
            if options.bless {
                environment.push(("MONOMORPH_BLESS", "1".as_ref()));
            }
            cargo(&["test", "--workspace", "--quiet"], &environment)
        })),
        ("openai client", Box::new(|| openai_client(&target, &weights))),
    ];
    let mut failed = Vec::new();
    for (name, check) in &checks {
        let start = Instant::now();
        eprintln!("== {name}");
        if let Err(why) = check() {
            eprintln!("{name}: {why}");
            failed.push(*name);
        }
        eprintln!("== {name}: {:.0} s", start.elapsed().as_secs_f64());
    }
    println!("{} passed, {} failed", checks.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn cargo(arguments: &[&str], environment: &[(&str, &std::ffi::OsStr)]) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.current_dir(paths::root()).args(arguments).envs(environment.iter().copied());
    run(&mut command)
}

/// Runs a command to its end; an error names it.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// The official Python client against a server with the real model.
fn openai_client(target: &TargetOptions, weights: &Path) -> Result<(), String> {
    let server = crate::build::server(target)?;
    let clients = paths::root().join("tests/clients");
    let python = venv(&paths::root().join("target/venv-clients"), &clients.join("requirements.txt"))?;
    run(Command::new(python).arg(clients.join("run.py")).arg(server).arg(weights))
}

/// A virtual environment holding what a requirements file pins, made anew when the file changes. Returns its
/// Python.
pub fn venv(directory: &Path, requirements: &Path) -> Result<PathBuf, String> {
    let python = directory.join("bin/python");
    let wanted = std::fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let stamp = directory.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(directory))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(requirements))?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

//! `cargo xtask mutants`: mutation testing of the crates that only decide, with a pinned cargo-mutants.
//!
//! What survives is compared with tests/mutants.toml, where each survivor has its reason.

mod survivors;

use crate::paths;
use clap::Args;
use monomorph_compiler::toolchain::cargo;
use monomorph_compiler::toolchain::python::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use survivors::{Mutant, Outcome};

const VERSION: &str = "27.1.0";

#[derive(Args)]
pub struct Options {
    /// Crates to mutate; by default all: cache, engine, sampling, grammar.
    #[arg(value_parser = CRATES.map(|it| it.name))]
    crates: Vec<String>,
    /// Mutate only files that match this glob; entries of others are not compared.
    #[arg(long, value_name = "GLOB")]
    file: Option<String>,
}

struct MutatedCrate {
    name: &'static str,
    files: &'static str,
    /// Which tests of the crate are run on each mutant; all where none is named.
    tests: &'static [&'static str],
}

const CRATES: [MutatedCrate; 4] = [
    MutatedCrate { name: "cache", files: "runtime/cache/src/**", tests: &[] },
    // The other tests run whole engines and take minutes.
    MutatedCrate {
        name: "engine",
        files: "runtime/engine/src/scheduler/**",
        tests: &["--lib", "--test=scheduler"],
    },
    MutatedCrate { name: "sampling", files: "runtime/sampling/src/**", tests: &[] },
    MutatedCrate { name: "grammar", files: "runtime/grammar/src/**", tests: &["--lib", "--tests"] },
];

pub fn mutants(options: Options) -> Result<(), String> {
    let listed = survivors::list(&paths::root())?;
    let tool = tool()?;
    let mut complaints = Vec::new();
    for mutated in &CRATES {
        if !options.crates.is_empty() && !options.crates.iter().any(|name| name == mutated.name) {
            continue;
        }
        let files = options.file.as_deref().unwrap_or(mutated.files);
        let outcome = mutate(&tool, mutated, files)?;
        println!("{}: {outcome}", mutated.name);
        let listed: Vec<Mutant> = listed
            .get(mutated.name)
            .into_iter()
            .flatten()
            // Of a file that is gone, or not to be mutated, the entry is to go too.
            .filter(|it| options.file.is_none() || outcome.files.contains(&it.file))
            .cloned()
            .collect();
        complaints.extend(survivors::compare(mutated.name, &outcome.survivors, &listed));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

/// The program, installed below target/ unless it is there.
fn tool() -> Result<PathBuf, String> {
    let root = paths::root().join(format!("target/tools/cargo-mutants-{VERSION}"));
    let program = root.join("bin/cargo-mutants");
    if !program.is_file() {
        let mut command = cargo();
        command.args(["install", "cargo-mutants", "--locked", "--version", &format!("={VERSION}"), "--root"]);
        run(command.arg(&root))?;
    }
    Ok(program)
}

/// Tests every mutant of a crate, in a copy of the workspace.
fn mutate(tool: &Path, mutated: &MutatedCrate, files: &str) -> Result<Outcome, String> {
    let root = paths::root();
    let directory = root.join("target/mutants");
    let output = directory.join(mutated.name);
    std::fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let mut command = Command::new(tool);
    command
        .arg("mutants")
        .arg("--dir")
        .arg(&root)
        .arg("--output")
        .arg(&output)
        .args(["--package", &format!("monomorph-{}", mutated.name), "--file", files])
        // What a mutant lets run for ever must end, and a busy machine must not look like that.
        .args(["--no-shuffle", "--timeout-multiplier", "6", "--minimum-test-timeout", "20"])
        .arg("--")
        .args(mutated.tests)
        // One for all copies, so that dependencies are compiled once.
        .env("CARGO_TARGET_DIR", directory.join("build"))
        .env("CARGO_PROFILE_DEV_DEBUG", "none");
    let status = command.status().map_err(|error| format!("{command:?} could not be started: {error}"))?;
    // 2 says that some were missed, 3 that some timed out.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("{command:?}: {status}"));
    }
    let json = paths::read(&output.join("mutants.out/outcomes.json"))?;
    Outcome::of(&json, |file| paths::read(&root.join(file)))
}

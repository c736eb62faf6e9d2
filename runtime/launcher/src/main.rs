//! `monomorph`: installs and starts servers that were built elsewhere.

mod choice;
mod run;
mod weights;

use clap::{Args, Parser, Subcommand};
use monomorph_hub::free;
use monomorph_launcher::machine::{Finding, Machine};
use monomorph_launcher::place::Place;
use monomorph_launcher::{index::Entry, size};
use std::path::PathBuf;
use std::process::ExitCode;

/// The first branch of drivers that servers of this version run with.
const LEAST_DRIVER: u32 = monomorph_abi::cuda::LEAST_DRIVER;

/// Where this version's release is.
const RELEASES: &str =
    concat!(env!("CARGO_PKG_REPOSITORY"), "/releases/download/v", env!("CARGO_PKG_VERSION"), "/index.json");

#[derive(Parser)]
#[command(
    name = "monomorph",
    version,
    about = "Installs and starts servers of language models, each built for one model and one machine."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the servers of a release: which run on this machine, and why the others do not.
    List(From),
    /// Say what this machine is, and what it lacks.
    Doctor(Cache),
    /// Install a server and its weights if they are not there yet, then serve; with --prompt, answer it and
    /// exit.
    Run(run::Options),
}

/// Which release.
#[derive(Args, Clone)]
struct From {
    /// The release's index, or the directory or address that it is in.
    #[arg(long, value_name = "PATH|URL", default_value = RELEASES)]
    index: String,
}

/// Where servers are kept.
#[derive(Args, Clone)]
struct Cache {
    /// Directory that servers are installed in [default: monomorph, below $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

impl Cache {
    fn directory(&self) -> Result<PathBuf, String> {
        let set = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        let below =
            || Some(set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?.join("monomorph"));
        let directory = self.cache_dir.clone().or_else(below);
        directory
            .ok_or_else(|| "HOME is not set: say with --cache-dir where servers are to be kept".to_owned())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::List(from) => list(&from),
        Verb::Doctor(cache) => doctor(&cache),
        Verb::Run(options) => run::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn list(from: &From) -> Result<(), String> {
    let index = Place::named(&from.index).index()?;
    let machine = Machine::look();
    let width = index.targets.iter().map(|it| it.target.len()).max().unwrap_or(0);
    for entry in &index.targets {
        let verdict = match choice::fits(entry, &machine) {
            Ok(()) => "runs here".to_owned(),
            Err(why) => format!("does not run here: {why}"),
        };
        let Entry { target, archive, memory, .. } = entry;
        println!(
            "{target:<width$}  {:>9}  {:>9} of weights  {verdict}",
            size(archive.bytes),
            size(memory.weights)
        );
    }
    println!(
        "\n{} servers of {}, commit {}",
        index.targets.len(),
        index.version,
        index.commit.as_deref().unwrap_or("unknown")
    );
    Ok(())
}

fn doctor(cache: &Cache) -> Result<(), String> {
    let (machine, directory) = (Machine::look(), cache.directory()?);
    let mut findings = machine.host();
    let features: Vec<&str> = machine.features.iter().map(String::as_str).collect();
    findings.push(Finding::fine("features", features.join(" ")));
    let disk = free(&directory).map_or_else(|| "not known".to_owned(), |it| format!("{} free", size(it)));
    findings.push(Finding::fine("disk", format!("{disk} for {}", directory.display())));
    let without =
        format!("servers of GPUs do not run here: with a card, install driver {LEAST_DRIVER} or newer");
    findings.extend(machine.cards(LEAST_DRIVER, &without));
    findings.iter().for_each(|it| println!("{it}"));
    println!("\nmonomorph list names the servers that run here; monomorph run starts one.");
    Ok(())
}

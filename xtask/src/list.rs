//! `cargo xtask list`: the targets that can be built, their measurements, and those that wait for something.

use crate::paths;
use clap::Args;
use monomorph_compiler::standing::{self, Lack, Listed, Measurement, Standing};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = "\
measured  it can be built, and its speed was measured: tokens a second of one sequence, which docs/performance.md has more of
compiled  it can be built; its kernels are inspected as they are compiled, and nobody has measured it
waiting   it cannot be planned, and why not

Every target is planned to find out. What was measured stands in measured.toml beside hardware/ and models/.")]
pub struct Options {
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    /// List the waiting targets too, not only their number and what they wait for.
    #[arg(long)]
    all: bool,
    /// Print one JSON array of all targets, including the waiting ones.
    #[arg(long)]
    json: bool,
}

pub fn list(options: Options) -> Result<(), String> {
    let listed = standing::list(&paths::search(options.targets_dir.as_deref()))?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&listed).map_err(|error| error.to_string())?);
    } else {
        print!("{}", text(&listed, options.all));
    }
    Ok(())
}

/// One target per line: those that can be built first, and among them the measured ones.
fn text(listed: &[Listed], all: bool) -> String {
    let width = listed.iter().map(|it| it.target.len()).max().unwrap_or(0);
    let mut out = String::new();
    let mut line = |target: &str, status: &str, what: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", format!("{target:<width$}  {status:<8}  {what}").trim_end());
    };
    for it in listed {
        if let Standing::Measured { measured } = &it.standing {
            line(&it.target, "measured", &words(measured));
        }
    }
    for it in listed.iter().filter(|it| it.standing == Standing::Compiled) {
        line(&it.target, "compiled", "");
    }
    let waiting = listed.iter().filter_map(|it| match &it.standing {
        Standing::Waiting { waits_for, reason } => Some((it.target.as_str(), *waits_for, reason.as_str())),
        _ => None,
    });
    if all {
        waiting.for_each(|(target, _, reason)| line(target, "waiting", reason));
        return out;
    }
    let mut lacks: BTreeMap<Lack, usize> = BTreeMap::new();
    waiting.for_each(|(_, waits_for, _)| *lacks.entry(waits_for).or_default() += 1);
    let parts = lacks.iter().map(|(lack, count)| match lack {
        Lack::Kernels => format!("{count} for kernels that there are not yet"),
        Lack::Memory => format!("{count} for hardware with more memory"),
        Lack::Specs => format!("{count} for mistakes in their specs to be mended"),
    });
    let parts: Vec<String> = parts.collect();
    if !parts.is_empty() {
        let count: usize = lacks.values().sum();
        let _ = writeln!(out, "{count} more wait, {}; --all lists them", parts.join(", "));
    }
    out
}

/// A measurement in a few words.
fn words(it: &Measurement) -> String {
    let (weights, machine) = (it.weights.words(), &it.machine);
    format!("{:.0} tok/s after {}, {weights}, {machine}, {} at {}", it.decode, it.after, it.date, it.commit)
}

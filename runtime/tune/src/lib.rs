//! Times the variants that `cargo xtask tune` compiled for the phases of a target, each alone and in the
//! whole program, and chooses among them. It runs on the machine that has the card and needs its driver only.
//!
//! [`manifest`] is what both sides share. [`choice`] decides from times alone; [`bench`] takes them.

pub mod bench;
pub mod choice;
pub mod manifest;
mod memory;
mod step;
mod trace;

use bench::{Bench, Session, Workload};
use choice::Results;
use manifest::Manifest;
use memory::Kernels;
use monomorph_device::cuda::measure::Card;
use monomorph_model::CudaSpec;
use std::path::Path;
use std::time::Instant;

/// Why something could not be measured.
pub type Error = Box<dyn std::error::Error>;

fn read(directory: &Path) -> Result<Manifest, Error> {
    let path = directory.join("manifest.json");
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| at(&error))?;
    Ok(serde_json::from_str(&text).map_err(|error| at(&error))?)
}

fn open<'a>(manifest: &'a Manifest, directory: &Path) -> Result<Session<'a>, Error> {
    let card = &manifest.card;
    let card = Card::open(CudaSpec {
        architecture: card.architecture.clone().leak(),
        capability: card.capability,
        multiprocessors: card.multiprocessors,
        tuning: "none",
    })?;
    Session::new(manifest, card, Kernels::new(manifest, directory))
}

/// Measures all variants of the target in `directory` and writes what was found, and the tuning file if one
/// is worth it, to `out`.
///
/// # Errors
/// When the card is another, something is missing, or a default has wrong results.
pub fn tune(directory: &Path, out: &Path, workload: &Workload) -> Result<(), Error> {
    let manifest = read(directory)?;
    let mut session = open(&manifest, directory)?;
    let mut programs = Vec::new();
    for program in &manifest.programs {
        let began = Instant::now();
        let found = Bench::new(&mut session, program, workload)?.measure()?;
        print!("{}", choice::table(&found));
        for unit in &program.units {
            for refused in &unit.refused {
                println!("  {}: not planned with {:?}: {}", unit.phase, refused.settings, refused.why);
            }
        }
        println!("  {:.1} s", began.elapsed().as_secs_f64());
        programs.push(found);
    }
    let card = session.card.name().to_owned();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let results = Results { card, date, command: manifest.command.clone(), programs };
    std::fs::create_dir_all(out)?;
    let file = |ending: &str| out.join(format!("{}.{ending}", manifest.target.replace('/', "_")));
    std::fs::write(file("json"), serde_json::to_string_pretty(&results)?)?;
    match choice::tuning_file(&results) {
        None => println!("{}: the defaults stay", manifest.target),
        Some(text) => {
            std::fs::write(file("toml"), &text)?;
            println!("{}:\n{text}", file("toml").display());
        }
    }
    Ok(())
}

/// Prints where the time of each program of the target in `directory` goes, launch by launch.
///
/// # Errors
/// When the card is another, something is missing, or the target was gathered without clocks.
pub fn trace(directory: &Path, workload: &Workload) -> Result<(), Error> {
    let manifest = read(directory)?;
    trace::run(&mut open(&manifest, directory)?, workload)
}

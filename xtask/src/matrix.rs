//! `cargo xtask matrix`: the targets that can be built, as one line of JSON, for the jobs of a workflow.

use crate::{image, paths};
use clap::Args;
use monomorph_compiler::spec;
use monomorph_compiler::standing::{self, Listed};
use serde::Serialize;
use std::path::PathBuf;

/// Jobs that a matrix of GitHub's may have.
const MOST_JOBS: usize = 256;

#[derive(Args)]
pub struct Options {
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    /// Name those too that wait for something, and what for. They are no jobs.
    #[arg(long)]
    all: bool,
}

/// One job.
#[derive(Serialize)]
struct Job {
    /// Target, status, and the measurement or what it waits for.
    #[serde(flatten)]
    listed: Listed,
    /// The target as a name of artifacts.
    slug: String,
    /// Label of the machine that builds it.
    runner: &'static str,
    /// Whether its server runs on a GPU. None is needed to build it.
    needs_gpu: bool,
}

pub fn matrix(options: Options) -> Result<(), String> {
    let search = paths::search(options.targets_dir.as_deref());
    let mut jobs = Vec::new();
    for listed in standing::list(&search)? {
        // That of the machine which happens to build it.
        if listed.target.starts_with("cpu/") || (listed.standing.is_waiting() && !options.all) {
            continue;
        }
        let (hardware, _) = listed.target.split_once('/').expect("a target begins with its hardware");
        let hardware = spec::load_hardware(&search, hardware).map_err(|error| error.to_string())?;
        jobs.push(Job {
            slug: paths::slug(&listed.target),
            runner: image::platform(&hardware).runner(),
            needs_gpu: hardware.cuda().is_some(),
            listed,
        });
    }
    if !options.all && jobs.len() > MOST_JOBS {
        return Err(format!(
            "{} targets can be built, and a matrix has at most {MOST_JOBS} jobs",
            jobs.len()
        ));
    }
    println!("{}", serde_json::to_string(&jobs).map_err(|error| error.to_string())?);
    Ok(())
}

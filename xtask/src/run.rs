//! `cargo xtask run`: build, fetch the weights if missing, then serve or answer one prompt.

use crate::{BuildOptions, TargetOptions, build, fetch, model};
use clap::Args;
use monomorph_abi::serve::PORT;
use monomorph_launcher::start;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    model: model::ModelOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Answer this prompt on standard output and exit.
    #[arg(long)]
    prompt: Option<String>,
    /// Port to serve on.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Weights to use instead of fetching them.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
}

pub fn run(options: Options) -> Result<(), String> {
    let (mut target, mut weights) = (options.target, options.weights);
    if let Some(name) = &options.model.model {
        let chosen = model::choose(&options.model, name, target.targets_dir.as_deref())?;
        if chosen.stop {
            return Ok(());
        }
        (target, weights) = (chosen.target, weights.or(chosen.weights));
    }
    let server = build::server(&target, options.build)?;
    let weights = match weights {
        Some(path) => path,
        None => fetch::weights(&target)?,
    };
    if options.prompt.is_none() {
        let address = start::address(options.port);
        println!("{} at {address}\n{}", target.target, start::invitation(&address));
    }
    let mut command = start::command(&server, &weights, options.prompt.as_deref(), options.port);
    // The server replaces this process, so signals and the exit status are its own.
    Err(format!("{}: {}", server.display(), command.exec()))
}

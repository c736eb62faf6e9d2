//! `cargo xtask perplexity`: how well a server foretells a text.

use crate::{BuildOptions, TargetOptions, build, fetch};
use clap::Args;
use monomorph_compiler::toolchain::python::run;
use std::path::PathBuf;
use std::process::Command;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Weights [default: fetched].
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// A text in UTF-8.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Take this server instead of building one.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// What else the server's verb takes, such as `--window 512 --windows 8 --json`.
    #[arg(last = true)]
    more: Vec<String>,
}

pub fn perplexity(options: Options) -> Result<(), String> {
    let server = match options.server {
        Some(server) => server,
        None => build::server(&options.target, options.build)?,
    };
    let weights = match options.weights {
        Some(path) => path,
        None => fetch::weights(&options.target)?,
    };
    let mut command = Command::new(server);
    command.arg("perplexity").arg("--weights").arg(weights).arg("--text").arg(options.text);
    run(command.args(options.more))
}

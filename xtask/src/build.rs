//! `cargo xtask build`: from three TOML files to one server binary.

use crate::{BuildOptions, TargetOptions, paths};
use clap::Args;
use monomorph_compiler::toolchain::{self, Built};
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
}

pub fn build(options: Options) -> Result<(), String> {
    match built(&options.target, options.build)? {
        Built::Server(server) => println!("{}", server.display()),
        Built::Crate { directory, why } => {
            println!("{}", directory.display());
            eprintln!("no server was linked: {why}. The crate and its kernels stand in that directory.");
        }
    }
    Ok(())
}

/// Builds a target that is to run on this machine and returns the path of its server.
pub fn server(target: &TargetOptions, options: BuildOptions) -> Result<PathBuf, String> {
    match built(target, options)? {
        Built::Server(server) => Ok(server),
        Built::Crate { why, .. } => Err(format!("{} has no server to run: {why}", target.target)),
    }
}

fn built(target: &TargetOptions, options: BuildOptions) -> Result<Built, String> {
    let search = paths::search(target.targets_dir.as_deref());
    toolchain::build(&paths::root(), &search, &target.target, &options.asked()?)
        .map_err(|error| error.to_string())
}

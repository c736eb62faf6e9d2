//! `cargo xtask build`: three TOML files to one server binary.

use crate::{TargetOptions, paths};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
}

pub fn build(options: Options) -> Result<(), String> {
    println!("{}", server(&options.target)?.display());
    Ok(())
}

/// Builds a target and returns the path of its server.
pub fn server(target: &TargetOptions) -> Result<PathBuf, String> {
    let search = paths::search(target.targets_dir.as_deref());
    monomorph_compiler::toolchain::build(&paths::root(), &search, &target.target)
        .map_err(|error| error.to_string())
}

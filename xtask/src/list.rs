//! `cargo xtask list`: every target there is.

use crate::paths;
use clap::Args;
use monomorph_compiler::spec;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    /// Directory holding hardware/ and models/.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
}

pub fn list(options: Options) -> Result<(), String> {
    for target in
        spec::list(&paths::search(options.targets_dir.as_deref())).map_err(|error| error.to_string())?
    {
        println!("{target}");
    }
    Ok(())
}

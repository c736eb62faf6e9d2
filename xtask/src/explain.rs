//! `cargo xtask explain`: the plan of a target, for people or as JSON.

use crate::{TargetOptions, paths};
use clap::Args;
use monomorph_compiler::{graph, passes, report, spec};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn explain(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load(&search, &options.target.target).map_err(|error| error.to_string())?;
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).map_err(|error| error.to_string())?;
    if options.json {
        let report =
            serde_json::to_string_pretty(&report::report(&plan)).map_err(|error| error.to_string())?;
        println!("{report}");
    } else {
        print!("{}", report::text(&plan));
    }
    Ok(())
}

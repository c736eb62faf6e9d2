//! `cargo xtask explain`: the plan of a target, as text or as JSON.

use crate::{BuildOptions, TargetOptions, paths};
use clap::Args;
use monomorph_compiler::toolchain::{self, modules};
use monomorph_compiler::{report, spec, standing};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write a page that stands by itself: phases in time, roofline, memory, precision.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "cubins"])]
    html: Option<PathBuf>,
    /// Show in that page what the verb `profile --json` of a profiling build of the target printed.
    #[arg(long, value_name = "FILE", requires = "html")]
    times: Option<PathBuf>,
    /// Compile the kernels of a CUDA target and print each one's registers, shared memory and spills.
    #[arg(long)]
    cubins: bool,
}

pub fn explain(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load_with(&search, &options.target.target, &options.build.asked()?)
        .map_err(|error| error.to_string())?;
    if options.cubins {
        if target.hardware.cuda().is_none() {
            return Err(format!(
                "{}: only the kernels of a CUDA target are compiled to cubins",
                target.name()
            ));
        }
        let report = toolchain::cubins(&paths::root(), &target).map_err(|error| error.to_string())?;
        return print(options.json, &report, modules::text);
    }
    let plan = toolchain::plan(&target).map_err(|error| error.to_string())?;
    if let Some(path) = options.html {
        let dirs = search.iter().map(|dir| standing::measured(dir));
        let measured = dirs.collect::<Result<Vec<_>, _>>()?;
        let measured = measured.iter().find_map(|of| of.get(&target.build()));
        let read = |path: PathBuf| {
            let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let text = std::fs::read_to_string(&path).map_err(|error| said(&error))?;
            report::Times::read(&text, &plan).map_err(|error| said(&error))
        };
        let times = options.times.map(read).transpose()?;
        return std::fs::write(&path, report::html(&plan, measured, times.as_ref()))
            .map_err(|error| format!("{}: {error}", path.display()));
    }
    print(options.json, &report::report(&plan), |_| report::text(&plan))
}

fn print<T: Serialize>(json: bool, report: &T, text: impl Fn(&T) -> String) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string_pretty(report).map_err(|error| error.to_string())?);
    } else {
        print!("{}", text(report));
    }
    Ok(())
}

//! `pack`: writes packed weights to a file, which servers map.

use crate::failure::Failure;
use crate::process::out;
use crate::start::load::{NOT_MAPPED, ThreadArgs, WeightsArgs};
use crate::start::paths::packed_path;
use monomorph_model::{Model, ModelSpec, Progress, Weights};
use std::path::PathBuf;
use std::time::Instant;

/// Flags of `pack`.
#[derive(Debug, clap::Args)]
pub(crate) struct PackArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// The file to write, which takes about as much room as the weights. It has another name until it is
    /// whole; one of packed weights that has its name already is replaced [default: MODEL-QUANT.packed beside
    /// the weights].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Packs weights as this build reads them.
///
/// # Errors
/// When the weights are not this build's, the file cannot be written, or servers of this build map none.
pub(crate) fn pack<M: Model>(args: &PackArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    if spec.hardware.cuda.is_some() {
        return Err(NOT_MAPPED.to_owned().into());
    }
    if args.weights.tokenizer.is_some() {
        let why = "pack: a file of made-up weights has no tokenizer; give --tokenizer to who takes the file";
        return Err(why.to_owned().into());
    }
    let started = Instant::now();
    let threads = args.threads.count();
    let weights = args.weights.open(spec, threads)?;
    let (from, beside) = match &weights {
        Weights::Checkpoint(checkpoint) => (checkpoint.path().display().to_string(), Some(checkpoint.path())),
        Weights::Dummy { .. } => ("made-up weights".to_owned(), None),
    };
    let to = match (&args.out, beside.filter(|_| !args.weights.is_of_a_hub())) {
        (Some(out), _) => out.clone(),
        (None, Some(beside)) => packed_path(spec, beside),
        (None, None) => {
            let why = "pack: these weights are no files that packed ones could go beside; say with --out where they go";
            return Err(why.to_owned().into());
        }
    };
    out::print(format_args!("packing {from} for {} into {}", spec.target, to.display()));
    let bytes = M::pack(&weights, &to, &by(spec), threads, &Progress::default())?;
    out::print(format_args!(
        "packed in {:.2} s: {} ({}); --weights takes it",
        started.elapsed().as_secs_f64(),
        to.display(),
        out::bytes(bytes)
    ));
    Ok(())
}

/// What packed a file.
fn by(spec: &ModelSpec) -> String {
    let version = env!("CARGO_PKG_VERSION");
    spec.commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

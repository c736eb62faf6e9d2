//! `cargo xtask quantize`: turns a checkpoint in floats into the one that a quant spec describes.

mod config;
mod encode;
mod jobs;
mod shards;

use crate::{TargetOptions, paths};
use clap::Args;
use encode::Change;
use indicatif::{ProgressBar, ProgressStyle};
use jobs::{Job, JobPlan};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{CheckpointSpec, Container, DRAFT_PREFIX, RotaryRows, Target};
use monomorph_weights::{Checkpoint, Tensor};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    /// The checkpoint in f32, bf16 or f16: a safetensors file, or a directory of them.
    #[arg(long, value_name = "PATH")]
    weights: PathBuf,
    /// Another quant spec of the model, whose tensor names the input checkpoint uses [default: the target's
    /// own].
    #[arg(long, value_name = "QUANT")]
    from: Option<String>,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Bytes after which a new file begins.
    #[arg(long, value_name = "BYTES", default_value_t = 5_000_000_000)]
    shard_bytes: u64,
}

/// The error of every tensor, listed beside the weights.
const ERRORS: &str = "quantization_errors.tsv";

pub fn quantize(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load(&search, &options.target.target).map_err(|error| error.to_string())?;
    let load = |quant: &String| {
        let name = format!("{}/{}/{quant}", target.hardware.name, target.model.name);
        spec::load_quant(&search, &name).map_err(|error| error.to_string())
    };
    let from = options.from.as_ref().map(load).transpose()?;
    let from = from.map_or_else(|| jobs::unpacked(&target.quant.checkpoint), |quant| quant.checkpoint);
    for (what, spec) in [("what is written", &target.quant.checkpoint), ("what is read", &from)] {
        plain(what, spec)?;
    }
    let plan = jobs::plan(&target.model, &target.quant, &from.names)?;
    let checkpoint = Checkpoint::open(&options.weights).map_err(|error| error.to_string())?;
    // A draft head that the new checkpoint does not have is left out.
    let draft = from.names.iter().filter(|(name, _)| name.starts_with(DRAFT_PREFIX));
    let left = draft.map(|(_, file)| file.name.clone()).chain(from.unused.iter().cloned());
    let sources = find(&plan, &target, &left.collect::<Vec<_>>(), &checkpoint)?;
    let jobs = plan.jobs;
    let config = config::config(&jobs, checkpoint.side_file("config.json").as_deref())?;

    if options.out.exists() {
        return Err(format!("{} exists; nothing is overwritten", options.out.display()));
    }
    let parent = options.out.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |error: std::io::Error| format!("{}: {error}", parent.display());
    std::fs::create_dir_all(parent).map_err(io)?;
    // Removed when dropped: the requested directory appears only when complete.
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".quantize-").permissions(std::fs::Permissions::from_mode(0o755));
    let partial = builder.tempdir_in(parent).map_err(io)?;

    let changes = write(&jobs, &sources, &checkpoint, partial.path(), options.shard_bytes)?;
    if let Some(config) = &config {
        save(&partial.path().join("config.json"), config)?;
    }
    let copied = config::copy_side_files(checkpoint.directory(), partial.path())?;
    save(&partial.path().join(ERRORS), &listing(&jobs, &changes))?;
    std::fs::rename(partial.keep(), &options.out)
        .map_err(|error| format!("{}: {error}", options.out.display()))?;

    print!("{}", table(&jobs, &changes));
    println!("tensor by tensor: {}", options.out.join(ERRORS).display());
    if config.is_none() {
        println!("no config.json stands beside the weights, so none was written");
    }
    println!("copied: {}", if copied.is_empty() { "no other file".to_owned() } else { copied.join(", ") });
    println!("{}", options.out.display());
    Ok(())
}

/// Whether the rows of the described files are in the model's order.
fn plain(what: &str, spec: &CheckpointSpec) -> Result<(), String> {
    if spec.container != Container::Safetensors {
        return Err(format!(
            "{what} would be a GGUF file, by its spec; only safetensors are read and written"
        ));
    }
    if spec.rotary_rows != RotaryRows::AsModel {
        return Err(format!(
            "{what} has interleaved rotary rows, by its spec; rows are not put in another order"
        ));
    }
    Ok(())
}

/// The tensors of the old checkpoint, by name. All problems are reported at once.
fn find<'a>(
    plan: &JobPlan,
    target: &Target,
    unused: &[String],
    checkpoint: &'a Checkpoint,
) -> Result<BTreeMap<String, Tensor<'a>>, String> {
    let (mut tensors, mut faults) = (BTreeMap::new(), Vec::new());
    for (name, shape) in &plan.sources {
        match checkpoint.tensor(name) {
            Err(error) => faults.push(error.to_string()),
            Ok(tensor) if tensor.shape != shape => {
                faults.push(format!("tensor `{name}` should be {shape:?} and is {:?}", tensor.shape));
            }
            Ok(tensor) if tensor.format.is_quantised() => faults
                .push(format!("tensor `{name}` is {}; only f32, bf16 and f16 are quantised", tensor.format)),
            Ok(tensor) => drop(tensors.insert(name.clone(), tensor)),
        }
    }
    let known = |name: &str| {
        plan.sources.contains_key(name)
            || unused.iter().any(|pattern| monomorph_model::is_instance(pattern, name))
    };
    if let Err(error) = checkpoint.refuse_surplus(known) {
        faults.push(error.to_string());
    }
    if faults.is_empty() {
        return Ok(tensors);
    }
    const NAMED: usize = 10;
    let more = faults.len().saturating_sub(NAMED);
    faults.truncate(NAMED);
    faults.extend((more > 0).then(|| format!("and {more} more")));
    Err(format!(
        "{} is not what {} is made from:\n{}",
        checkpoint.path().display(),
        target.name(),
        faults.join("\n")
    ))
}

/// Writes the weights and returns each tensor's error, by job.
fn write(
    jobs: &[Job],
    sources: &BTreeMap<String, Tensor>,
    checkpoint: &Checkpoint,
    directory: &Path,
    shard_bytes: u64,
) -> Result<Vec<Option<Change>>, String> {
    let groups: Vec<_> = jobs.iter().map(Job::stored).collect();
    let shards = shards::Shards::create(directory, &groups, shard_bytes)?;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tensors, {eta} {wide_msg}");
    let bar = ProgressBar::new(jobs.len() as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut changes = Vec::new();
    for job in jobs {
        bar.set_message(job.name.clone());
        changes.push(encode::write(job, sources, &shards)?);
        bar.inc(1);
    }
    checkpoint.check_unchanged().map_err(|error| error.to_string())?;
    shards.finish()?;
    bar.finish_and_clear();
    Ok(changes)
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The error of every tensor, one per line.
fn listing(jobs: &[Job], changes: &[Option<Change>]) -> String {
    let mut text = "tensor\tformat\tlargest error / largest value\trms error / rms value\n".to_owned();
    for (job, change) in jobs.iter().zip(changes) {
        let numbers = change
            .map_or("copied\tcopied".to_owned(), |it| format!("{:.3e}\t{:.3e}", it.largest(), it.rms()));
        writeln!(text, "{}\t{}\t{numbers}", job.name, job.format).expect("strings are writable");
    }
    text
}

/// The same by the model's tensor names: the worst of each over layers and experts.
fn table(jobs: &[Job], changes: &[Option<Change>]) -> String {
    let mut rows: BTreeMap<(&str, &str), (usize, f64, f64)> = BTreeMap::new();
    let mut copied = 0;
    for (job, change) in jobs.iter().zip(changes) {
        let Some(change) = change else {
            copied += 1;
            continue;
        };
        let row = rows.entry((&job.of[..], job.format.name())).or_default();
        *row = (row.0 + 1, row.1.max(change.largest()), row.2.max(change.rms()));
    }
    let width = rows.keys().map(|(of, _)| of.len()).max().unwrap_or(0).max(6);
    let mut text =
        format!("{:width$}  {:9}  {:>7}  {:>11}  {:>11}\n", "tensor", "format", "tensors", "largest", "rms");
    for ((of, format), (count, largest, rms)) in rows {
        writeln!(text, "{of:width$}  {format:9}  {count:7}  {largest:11.3e}  {rms:11.3e}")
            .expect("strings are writable");
    }
    text + &format!("errors are over the largest value, and over the rms of all; {copied} tensors copied\n")
}

//! `cargo xtask quantize`: turns a checkpoint in floats into the one that a quant spec describes.

mod config;
mod encode;
mod gguf;
mod jobs;
mod shards;

use crate::{TargetOptions, paths};
use clap::Args;
use encode::Change;
use indicatif::{ProgressBar, ProgressStyle};
use jobs::{Job, JobPlan};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{CheckpointSpec, Container, DRAFT_PREFIX, RotaryRows, Target};
use monomorph_weights::{Checkpoint, SideFile, Tensor};
use shards::Shards;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    /// The checkpoint in f32, bf16 or f16: a safetensors file, or a directory of them; a GGUF file where the
    /// quant spec describes one.
    #[arg(long, value_name = "PATH")]
    weights: PathBuf,
    /// Take tensors that are quantised already too, in blocks with scales in them: what they lost stays lost.
    #[arg(long)]
    requantize: bool,
    /// Another quant spec of the model, whose tensor names the input checkpoint uses [default: the target's
    /// own].
    #[arg(long, value_name = "QUANT")]
    from: Option<String>,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Bytes after which a new safetensors file begins [default: 5000000000].
    #[arg(long, value_name = "BYTES")]
    shard_bytes: Option<u64>,
}

/// Bytes of a file where nothing else is asked.
const SHARD_BYTES: u64 = 5_000_000_000;

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
    let to = &target.quant.checkpoint;
    alike(&from, to)?;
    let as_gguf = to.container == Container::Gguf;
    if as_gguf && options.shard_bytes.is_some() {
        return Err("--shard-bytes is of safetensors: a GGUF is written as one file".to_owned());
    }
    let mut plan = jobs::plan(&target.model, &target.quant, &from.names)?;
    let checkpoint = Checkpoint::open(&options.weights).map_err(|error| error.to_string())?;
    let metadata = match (as_gguf, checkpoint.gguf_metadata()) {
        (true, None) => {
            return Err(format!(
                "{} is no GGUF file, and a GGUF is made from one, whose metadata it keeps",
                options.weights.display()
            ));
        }
        (true, metadata) => metadata,
        (false, _) => None,
    };
    // A draft head that the new checkpoint does not have is left out.
    let draft = from.names.iter().filter(|(name, _)| name.starts_with(DRAFT_PREFIX));
    let left = draft.map(|(_, file)| file.name.clone()).chain(from.unused.iter().cloned());
    let left: Vec<String> = left.collect();
    let mut sources = find(&plan, &target, &left, &checkpoint, options.requantize)?;
    if as_gguf {
        for job in &mut plan.jobs {
            job.shown = sources.get(&job.name).map(|tensor| tensor.shape.to_vec());
        }
        // Tables of frequencies and the like, which others read.
        let unused = checkpoint.tensors().filter(|tensor| !sources.contains_key(tensor.name));
        let unused: Vec<Tensor> = unused.collect();
        plan.jobs.extend(unused.iter().map(|it| jobs::copy(it.name, it.shape, it.format)));
        sources.extend(unused.into_iter().map(|tensor| (tensor.name.to_owned(), tensor)));
    }
    let jobs = plan.jobs;
    let config = match as_gguf {
        true => None,
        false => config::config(&jobs, checkpoint.side_file("config.json").as_ref().map(SideFile::path))?,
    };

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

    let groups: Vec<_> = jobs.iter().map(Job::stored).collect();
    let shards = match metadata {
        Some(metadata) => gguf::create(partial.path(), metadata, &groups.concat())?,
        None => Shards::create(partial.path(), &groups, options.shard_bytes.unwrap_or(SHARD_BYTES))?,
    };
    let changes = write(&jobs, &sources, &checkpoint, shards)?;
    if let Some(config) = &config {
        save(&partial.path().join("config.json"), config)?;
    }
    let copied = match as_gguf {
        true => Vec::new(),
        false => config::copy_side_files(checkpoint.directory(), partial.path())?,
    };
    save(&partial.path().join(ERRORS), &listing(&jobs, &changes))?;
    std::fs::rename(partial.keep(), &options.out)
        .map_err(|error| format!("{}: {error}", options.out.display()))?;

    print!("{}", table(&jobs, &changes));
    println!("tensor by tensor: {}", options.out.join(ERRORS).display());
    if as_gguf {
        println!("{}", options.out.join(gguf::FILE).display());
        return Ok(());
    }
    if config.is_none() {
        println!("no config.json stands beside the weights, so none was written");
    }
    println!("copied: {}", if copied.is_empty() { "no other file".to_owned() } else { copied.join(", ") });
    println!("{}", options.out.display());
    Ok(())
}

/// Whether both are files of one kind with rows in one order, by their specs.
fn alike(from: &CheckpointSpec, to: &CheckpointSpec) -> Result<(), String> {
    let container = |spec: &CheckpointSpec| match spec.container {
        Container::Gguf => "a GGUF file",
        Container::Safetensors => "safetensors",
    };
    if from.container != to.container {
        return Err(format!(
            "what is read would be {}, by its spec, and what is written {}; both are to be of one kind",
            container(from),
            container(to)
        ));
    }
    let rows = |spec: &CheckpointSpec| match spec.rotary_rows {
        RotaryRows::AsModel => "as the model has them",
        RotaryRows::Interleaved => "interleaved",
    };
    if from.rotary_rows != to.rotary_rows {
        return Err(format!(
            "what is read has rotary rows {}, by its spec, and what is written {}; rows are not put in another \
             order",
            rows(from),
            rows(to)
        ));
    }
    let converted = |it: &CheckpointSpec| (it.value_heads, it.one_plus_norms, it.decay);
    if converted(from) != converted(to) {
        return Err(
            "what is read and what is written differ, by their specs, in `value_heads`, `one_plus_norms` or \
             `decay`; these are not changed"
                .to_owned(),
        );
    }
    Ok(())
}

/// The tensors of the old checkpoint, by name. All problems are reported at once.
fn find<'a>(
    plan: &JobPlan,
    target: &Target,
    unused: &[String],
    checkpoint: &'a Checkpoint,
    requantize: bool,
) -> Result<BTreeMap<String, Tensor<'a>>, String> {
    let (mut tensors, mut faults) = (BTreeMap::new(), Vec::new());
    for (name, shape) in &plan.sources {
        match checkpoint.tensor(name) {
            Err(error) => faults.push(error.to_string()),
            // A GGUF file leaves dimensions of one out: of convolutions, and of matrices of one row.
            Ok(tensor) if checkpoint.expect(name, shape, tensor.format).is_err() => {
                faults.push(format!("tensor `{name}` should be {shape:?} and is {:?}", tensor.shape));
            }
            Ok(tensor) if tensor.format.has_companions() => faults
                .push(format!("tensor `{name}` is {}; only f32, bf16 and f16 are quantised", tensor.format)),
            Ok(tensor) if tensor.format.is_quantised() && !requantize => faults.push(format!(
                "tensor `{name}` is {} already; --requantize takes it as it is, with what it has lost",
                tensor.format
            )),
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
    shards: Shards,
) -> Result<Vec<Option<Change>>, String> {
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

//! Kept prefixes: flags, and what the files are bound to.

use crate::process::out;
use monomorph_engine::{EngineHandle, EngineOptions, KeepOptions, PrefixOptions};
use monomorph_model::{ModelSpec, SlidingSpec, Weights};
use monomorph_weights::digest;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Bytes that a file is read in, to be digested.
const CHUNK: usize = 4 << 20;
/// Bytes of weights that are looked at: the beginning of each file, and windows all over it.
const BEGINNING: u64 = 256 << 10;
const WINDOW: u64 = 4096;
const WINDOWS: u64 = 64;

/// Flags of kept prefixes.
#[derive(Clone, Debug, clap::Args)]
pub struct KeepArgs {
    /// Keep the prefix cache in files in this directory, too: a start of the same build with the same weights
    /// finds there what prompts had in common before it, whatever ended the last one. The files hold what
    /// people said; they are their owner's alone, and one server's at a time.
    #[arg(long, value_name = "DIR")]
    pub keep_prefixes: Option<PathBuf>,
    /// Size of the files, claimed at the start; the prefix used longest ago makes room [default: what all
    /// blocks and snapshots in memory take].
    #[arg(long, value_name = "GB", requires = "keep_prefixes", allow_negative_numbers = true)]
    pub keep_prefixes_space: Option<f64>,
}

impl KeepArgs {
    /// The engine's options, still without what the files are bound to: see [`bind`]. A server may have
    /// `prefix` caching, with as many `snapshots` of recurrent states as were asked for, and be `alone` or
    /// one of several processes; `report` receives a line where files may not be used.
    ///
    /// # Errors
    /// When this server's prefixes cannot be kept, a size is out of range, or the files are not to be had.
    pub(crate) fn options(
        &self,
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        (prefix, snapshots): (&PrefixOptions, Option<usize>),
        alone: bool,
        report: fn(std::fmt::Arguments),
    ) -> Result<Option<KeepOptions>, String> {
        let Some(directory) = &self.keep_prefixes else { return Ok(None) };
        let flag = format!("--keep-prefixes {}", directory.display());
        if !prefix.enabled {
            return Err(format!("{flag} goes with --prefix-cache on"));
        }
        if spec.state_bytes > 0 && snapshots == Some(0) {
            return Err(format!(
                "{flag} goes with --snapshots of at least 1: {} has recurrent state",
                spec.model
            ));
        }
        if !alone {
            return Err(format!("{flag}: a server of several processes keeps none"));
        }
        let bytes = self.keep_prefixes_space.map(|size| match size > 0.0 && size < 1e9 {
            true => Ok((size * out::GB) as u64),
            false => Err(format!("--keep-prefixes-space {size}: must be a number of GB above 0")),
        });
        let options = KeepOptions {
            directory: directory.clone(),
            bytes: bytes.transpose()?,
            identity: Vec::new(),
            report,
        };
        options.check(spec, sliding).map_err(|error| format!("{flag}: {error}"))?;
        Ok(Some(options))
    }

    /// Bytes of host memory that keeping takes.
    pub(crate) fn memory(&self, spec: &ModelSpec) -> u64 {
        self.keep_prefixes.as_ref().map_or(0, |_| KeepOptions::memory(spec))
    }
}

/// Binds kept prefixes to all that keys and values depend on besides tokens: this very program, the weights,
/// and over how many tokens scales are measured.
///
/// # Errors
/// When the program or the weights cannot be read.
pub(crate) fn bind(
    engine: EngineOptions,
    spec: &ModelSpec,
    weights: &Weights,
    calibration: Option<usize>,
) -> Result<EngineOptions, String> {
    let Some(keep) = engine.keep else { return Ok(engine) };
    let specs: String = spec.specs.iter().map(|file| format!("{} {}\n", file.name, file.sha256)).collect();
    let program = digest_of_program().map_err(|error| format!("--keep-prefixes: this program: {error}"))?;
    let weights = digest_of(weights).map_err(|error| format!("--keep-prefixes: the weights: {error}"))?;
    let formats = format!("{}, exact in {} layers", spec.kv_formats, spec.kv_exact_layers);
    let identity = [
        ("target", spec.target.to_owned()),
        ("set of specs", format!("{:016x}", digest(specs.as_bytes()))),
        ("set of weights", weights),
        ("format of keys and values", formats),
        ("number of calibration tokens", calibration.unwrap_or(0).to_string()),
        ("size of a block", format!("{} tokens of {} bytes", spec.block_tokens, spec.block_bytes)),
        ("size of a recurrent state", format!("{} bytes", spec.state_bytes)),
        ("build", format!("{program:016x}")),
    ];
    let identity = identity.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(EngineOptions { keep: Some(KeepOptions { identity, ..keep }), ..engine })
}

/// A digest of the program that runs: another build may round otherwise.
fn digest_of_program() -> io::Result<u64> {
    let (mut file, mut chunk, mut digests) = (File::open("/proc/self/exe")?, Vec::new(), Vec::new());
    loop {
        chunk.clear();
        if (&mut file).take(CHUNK as u64).read_to_end(&mut chunk)? == 0 {
            return Ok(digest(&digests));
        }
        digests.extend(digest(&chunk).to_le_bytes());
    }
}

/// What weights are known by without reading all of them: of each file its length, when it was written, its
/// beginning, which names and places the tensors, and windows all over it.
fn digest_of(weights: &Weights) -> io::Result<String> {
    let checkpoint = match weights {
        Weights::Dummy { seed } => return Ok(format!("dummy {seed}")),
        Weights::Checkpoint(checkpoint) => checkpoint,
    };
    let files: Vec<&File> = match checkpoint.packed() {
        Some(packed) => vec![packed.file()],
        None => checkpoint.files().iter().map(|file| file.file()).collect(),
    };
    let mut known = Vec::new();
    for file in files {
        let metadata = file.metadata()?;
        let length = metadata.len();
        for number in [length as i64, metadata.mtime(), metadata.mtime_nsec()] {
            known.extend(number.to_le_bytes());
        }
        let mut look = |from: u64, bytes: u64| -> io::Result<()> {
            let mut window = vec![0; bytes.min(length - from) as usize];
            file.read_exact_at(&mut window, from)?;
            known.extend(digest(&window).to_le_bytes());
            Ok(())
        };
        look(0, BEGINNING)?;
        (0..WINDOWS).try_for_each(|at| look(length / WINDOWS * at, WINDOW))?;
    }
    Ok(format!("{:016x}", digest(&known)))
}

/// Kept prefixes in words: where they are, and what of an earlier start is there.
pub(crate) fn describe(spec: &ModelSpec, engine: &EngineHandle) -> String {
    let Some(keep) = engine.keep() else { return String::new() };
    let kept = engine.stats().kept;
    let there = kept.at_start * spec.block_tokens;
    let (states, room) = match spec.state_bytes {
        0 => (String::new(), format!("{} tokens", kept.capacity * spec.block_tokens)),
        // Tokens and states share it.
        _ => (format!(" and {} states", kept.snapshots_at_start), format!("{} pages", kept.capacity)),
    };
    format!(
        "; prefixes kept in {}: {there} tokens{states} of an earlier start, room for {room}",
        keep.directory.display()
    )
}

//! `read`: how fast files of weights are read, beside what else there is.

use crate::process::out;
use crate::start::load::{ThreadArgs, WeightsArgs};
use monomorph_model::{ModelSpec, Weights};
use monomorph_store::{copy_mapped, drop_cached};
use monomorph_weights::{Bytes, Checkpoint, Tensor, WeightsRead, Windows};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes that a thread takes at a time, as one that packs for a GPU.
const PART: usize = 8 << 20;
/// Bytes of a read, about those of a row.
const ROW: usize = 16 << 10;
/// Bytes that are mapped at a time.
const MAPPED: usize = 1 << 20;

/// Flags of `read`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// How bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As servers do, with `--no-fast-load` or without.
    Loading,
    Mapped,
}

/// Reads all tensors in each way, from the disk and from the system's cache, and prints a line for each.
///
/// # Errors
/// When the weights are no checkpoint, or cannot be read.
pub(crate) fn read(spec: &ModelSpec, args: &ReadArgs) -> Result<(), String> {
    let threads = args.threads.count();
    let open = || match args.weights.open(spec, threads)? {
        Weights::Checkpoint(checkpoint) if checkpoint.packed().is_none() => Ok(checkpoint),
        Weights::Checkpoint(checkpoint) => {
            Err(format!("read: {} is mapped by servers, and not read", checkpoint.path().display()))
        }
        Weights::Dummy { .. } => Err("read: made-up weights are not read".to_owned()),
    };
    let checkpoint = open()?;
    let bytes: usize = checkpoint.tensors().map(|tensor| tensor.bytes.len()).sum();
    out::print(format_args!(
        "{}: {} of tensors, {threads} threads",
        checkpoint.path().display(),
        out::bytes(bytes as u64)
    ));
    drop(checkpoint);
    for (name, way, fast) in [
        ("directly", Way::Loading, true),
        ("--no-fast-load", Way::Loading, false),
        ("mapped", Way::Mapped, false),
    ] {
        let of_loading = |checkpoint: Checkpoint| match fast && !args.weights.no_fast_load {
            true => checkpoint.read_directly(),
            false => checkpoint.read_plainly("--no-fast-load"),
        };
        let checkpoint = of_loading(open()?);
        for file in checkpoint.files() {
            drop_cached(file.file()).map_err(|error| format!("{}: {error}", file.path().display()))?;
        }
        let (cold, how) = measure(&checkpoint, way, threads)?;
        out::print(format_args!("{name}, cold: {cold:.2} GB/s{}", described(way, &how)));
        // Direct reads leave nothing in the cache.
        if fast {
            measure(&of_loading(open()?).read_plainly("to fill the cache"), Way::Loading, threads)?;
        }
        let checkpoint = of_loading(open()?);
        let (warm, how) = measure(&checkpoint, way, threads)?;
        out::print(format_args!("{name}, warm: {warm:.2} GB/s{}", described(way, &how)));
    }
    Ok(())
}

/// Where the bytes came from, of reads that servers make.
fn described(way: Way, how: &WeightsRead) -> String {
    let WeightsRead { direct, cached, plain, why_plain } = how;
    if way == Way::Mapped {
        return String::new();
    }
    let why = why_plain.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    let [direct, cached, plain] = [direct, cached, plain].map(|bytes| out::bytes(*bytes));
    format!(": {direct} directly, {cached} that were cached, {plain} otherwise{why}")
}

/// A part of a tensor.
type Part<'a> = (Bytes<'a>, Range<usize>);

/// Reads all tensors on so many threads. Returns GB a second, and how they were read.
fn measure(checkpoint: &Checkpoint, way: Way, threads: usize) -> Result<(f64, WeightsRead), String> {
    let mut parts: Vec<Part> = Vec::new();
    for Tensor { bytes, .. } in checkpoint.tensors() {
        parts.extend(cut(0..bytes.len(), PART).map(|part| (bytes, part)));
    }
    let next = AtomicUsize::new(0);
    let take = || parts.get(next.fetch_add(1, Ordering::Relaxed));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let work = || match way {
            Way::Loading => load(&take),
            Way::Mapped => map(&take),
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err("a thread panicked".to_owned());
        let joined: Vec<_> = threads.into_iter().map(|it| it.join().unwrap_or_else(panicked)).collect();
        joined.into_iter().collect::<Result<(), String>>()
    })?;
    let bytes: usize = parts.iter().map(|(_, part)| part.len()).sum();
    Ok((bytes as f64 / 1e9 / begun.elapsed().as_secs_f64().max(1e-9), checkpoint.reading()))
}

/// The rows of a part.
fn rows<'a>((bytes, part): &Part<'a>) -> impl Iterator<Item = Part<'a>> + use<'a> {
    let bytes = *bytes;
    cut(part.clone(), ROW).map(move |row| (bytes, row))
}

/// Reads parts until none is left, the next one announced before one is read, as threads that pack do.
fn load<'a>(take: &dyn Fn() -> Option<&'a Part<'a>>) -> Result<(), String> {
    let (mut windows, mut packed) = (Windows::default(), [0; ROW]);
    let mut taken = take();
    windows.announce(taken.into_iter().flat_map(rows));
    while let Some(part) = taken {
        taken = take();
        windows.announce(taken.into_iter().flat_map(rows));
        for (bytes, row) in rows(part) {
            let read = windows.read(bytes, row).map_err(|error| error.to_string())?;
            packed[..read.len()].copy_from_slice(read);
        }
    }
    Ok(())
}

/// Copies parts out of mappings until none is left.
fn map<'a>(take: &dyn Fn() -> Option<&'a Part<'a>>) -> Result<(), String> {
    let mut copied = vec![0; MAPPED];
    while let Some((bytes, part)) = take() {
        let Some((file, start)) = bytes.place() else { continue };
        for window in cut(part.clone(), MAPPED) {
            copy_mapped(file.file(), start + window.start as u64, &mut copied[..window.len()])
                .map_err(|error| format!("{}: {error}", file.path().display()))?;
        }
    }
    Ok(())
}

/// A range in parts of at most so many.
fn cut(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(most).map(move |start| start..end.min(start + most))
}

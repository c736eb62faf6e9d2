//! Where a decode step's time goes while it runs, launch by launch, from the clocks that
//! `cargo xtask tune --trace` puts into kernels.

use crate::Error;
use crate::bench::{Bench, Session, Workload};
use crate::choice::Kept;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Dimensions of the records of a module: those of trace.cuh.
const LAUNCHES: usize = 96;
const BLOCKS: usize = 544;
/// Variables of a module: its records, and how many launches each kernel had.
const RECORDS: &str = "_ZN9monomorph13trace_recordsE";
const COUNTS: &str = "_ZN9monomorph14trace_launchesE";
/// `TraceRecord` of trace.cuh: three times in ns and two numbers.
const RECORD_BYTES: usize = 32;

/// A block of a launch, with times in ns of the card's clock.
#[derive(Clone, Copy, Debug)]
struct Record {
    began: u64,
    waited: u64,
    ended: u64,
    multiprocessor: u32,
}

impl Record {
    fn read(bytes: &[u8]) -> Record {
        let time = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let multiprocessor = u32::from_le_bytes(std::array::from_fn(|byte| bytes[24 + byte]));
        Record { began: time(0), waited: time(1), ended: time(2), multiprocessor }
    }
}

/// A launch: its kernel, and its blocks.
struct Traced {
    kernel: String,
    blocks: Vec<Record>,
}

impl Traced {
    fn times(&self, of: impl Fn(&Record) -> u64) -> impl Iterator<Item = u64> {
        self.blocks.iter().map(of)
    }
}

/// A variable of every loaded module with clocks: address, bytes, and the module's kernels, whose places are
/// their numbers.
fn variables(session: &mut Session, name: &str) -> Result<Vec<(u64, u64, Vec<String>)>, Error> {
    let Session { manifest, card, kernels, .. } = session;
    let mut found = Vec::new();
    for (cubin, module) in kernels.modules() {
        let kernels = manifest.kernels.iter().filter(|it| it.module.as_deref() == Some(cubin));
        let kernels: Vec<String> = kernels.map(|it| it.name.clone()).collect();
        if kernels.iter().any(|it| !it.starts_with("fill_")) {
            let (address, bytes) = card.variable(module, name)?;
            found.push((address, bytes, kernels));
        }
    }
    Ok(found)
}

/// Every launch of the last run, in order.
fn launches(session: &mut Session) -> Result<Vec<Traced>, Error> {
    let mut found = Vec::new();
    for (address, bytes, kernels) in variables(session, RECORDS)? {
        let records = session.card.download(address, bytes)?;
        let of_kernels = records.chunks_exact(LAUNCHES * BLOCKS * RECORD_BYTES);
        for (kernel, records) in kernels.iter().zip(of_kernels) {
            for launch in records.chunks_exact(BLOCKS * RECORD_BYTES) {
                let blocks = launch.chunks_exact(RECORD_BYTES).map(Record::read);
                let blocks: Vec<Record> = blocks.filter(|it| it.began > 0).collect();
                if !blocks.is_empty() {
                    found.push(Traced { kernel: kernel.clone(), blocks });
                }
            }
        }
    }
    found.sort_by_key(|it| it.times(|block| block.waited).max());
    Ok(found)
}

fn clear(session: &mut Session) -> Result<(), Error> {
    for name in [RECORDS, COUNTS] {
        for (address, bytes, _) in variables(session, name)? {
            session.card.fill(address, bytes, 0)?;
        }
    }
    Ok(session.card.wait()?)
}

/// A line a kernel, of means over its launches. A launch's time is from its blocks' coming past their wait to
/// those of the next launch. `first` and `last`: until its first and last block end. `early`: how long its
/// last block had stood there before the wait was over. `sm`: multiprocessors that had its blocks.
fn summary(launches: &[Traced]) -> String {
    let mut kinds: Vec<(&str, Vec<[f64; 6]>)> = Vec::new();
    for (at, launch) in launches.iter().enumerate() {
        let earliest = |it: &Traced| it.times(|block| block.waited).min().unwrap_or(0);
        let (waited, last) = (earliest(launch), launch.times(|block| block.ended).max().unwrap_or(0));
        let following = launches.get(at + 1).map_or(last, earliest);
        let first = launch.times(|block| block.ended).min().unwrap_or(0);
        let began = launch.times(|block| block.began).max().unwrap_or(0);
        let us = |from: u64, to: u64| (to as f64 - from as f64) / 1e3;
        let sms: BTreeSet<u32> = launch.blocks.iter().map(|it| it.multiprocessor).collect();
        let times = [us(waited, following), us(waited, first), us(waited, last), us(began, waited)];
        let row = [times[0], times[1], times[2], times[3], sms.len() as f64, launch.blocks.len() as f64];
        match kinds.iter_mut().find(|(name, _)| *name == launch.kernel) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((&launch.kernel, vec![row])),
        }
    }
    let mut out = format!("{:44}     n    time   first    last   early     sm of blocks   in all\n", "");
    for (name, rows) in kinds {
        let n = rows.len();
        let mean: [f64; 6] = std::array::from_fn(|at| rows.iter().map(|row| row[at]).sum::<f64>() / n as f64);
        let times: String = mean[..4].iter().map(|time| format!("{time:7.2} ")).collect();
        let all = mean[0] * n as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:44} {n:5} {times}{:6.1} of {:6.0} {all:8.1} us", mean[4], mean[5]);
    }
    out
}

/// Runs every program once with clocks in and prints where its time goes.
pub(crate) fn run(session: &mut Session, workload: &Workload) -> Result<(), Error> {
    let manifest = session.manifest;
    if !manifest.trace {
        return Err(format!("{} was gathered without --trace", manifest.target).into());
    }
    for program in &manifest.programs {
        let (recording, milliseconds, what) = {
            let mut bench = Bench::new(session, program, workload)?;
            let recording = bench.chain(0, &Kept::new())?;
            let milliseconds = bench.timed(&recording)?;
            (recording, milliseconds, bench.what())
        };
        clear(session)?;
        session.card.time(&recording)?;
        println!("{} {}, {what}: {milliseconds:.4} ms with clocks", manifest.target, program.name);
        print!("{}", summary(&launches(session)?));
    }
    Ok(())
}

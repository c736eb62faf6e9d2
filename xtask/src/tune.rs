//! `cargo xtask tune`: plans a target once for every way to cut each of its phases, compiles all those
//! kernels, and leaves what measures them on a machine with the card in `target/tune/`: the program `tune`
//! there, and `<target>/manifest.json` with cubins below:
//!
//! ```text
//! target/tune/tune h200/llama-3.1-8b/fp8 --out DIR
//! ```
//!
//! What that writes goes into `targets/tuning/`, reviewed. How many rows of a step stream (`stream_rows`) is
//! not tried: it changes several phases at a time.

mod kernels;
mod survey;
mod trace;
mod variants;

use crate::{TargetOptions, paths};
use clap::Args;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Provenance, Target, Tuning};
use monomorph_compiler::toolchain;
use monomorph_compiler::toolchain::python::run;
use monomorph_tune::manifest::Manifest;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    /// Buckets to measure: rows of a decode step, or prefill.
    #[arg(long, value_delimiter = ',', default_value = "1,64,prefill")]
    buckets: Vec<String>,
    /// Phases to measure, as explain names them [default: all].
    #[arg(long, value_delimiter = ',')]
    phases: Vec<String>,
    /// Instead of variants: the launches as the target has them, with clocks in, for `tune --trace`.
    #[arg(long, conflicts_with = "phases")]
    trace: bool,
}

pub fn tune(options: Options) -> Result<(), String> {
    let search = paths::search(options.target.targets_dir.as_deref());
    let target = spec::load(&search, &options.target.target).map_err(|error| error.to_string())?;
    let buckets = options.buckets.iter().map(|name| bucket(name)).collect::<Result<Vec<_>, _>>()?;
    let target = if options.trace { target } else { untuned(target, &buckets)? };
    let card = target.hardware.cuda().ok_or_else(|| format!("{} is no CUDA target", target.name()))?.clone();
    let knobs = target.tuning.as_ref().expect("CUDA targets have knobs").knobs;
    let mut survey = survey::Survey::new(&target, knobs)?;
    let bodies = survey.plan().bodies.iter();
    let known: Vec<String> = bodies.flat_map(|body| &body.phases).map(|phase| phase.name.clone()).collect();
    if let Some(unknown) = options.phases.iter().find(|name| !known.contains(name)) {
        return Err(format!("{} has no phase `{unknown}`; it has {}", target.name(), known.join(", ")));
    }
    for bucket in buckets {
        let wanted = |phase: &str| {
            !options.trace && (options.phases.is_empty() || options.phases.iter().any(|it| it == phase))
        };
        survey.program(bucket, wanted)?;
    }
    let phases = match options.phases.is_empty() {
        true => String::new(),
        false => format!(" --phases {}", options.phases.join(",")),
    };
    let buckets = options.buckets.join(",");
    let command = format!("cargo xtask tune --target {} --buckets {buckets}{phases}", target.name());
    let manifest = survey.manifest(command, options.trace);
    let all = paths::root().join("target/tune");
    let directory = all.join(target.name());
    // Kernels of an earlier call would travel along.
    if directory.is_dir() {
        std::fs::remove_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let kernels = survey.pool.compile(&directory, survey.plan(), &card, options.trace)?;
    let text = serde_json::to_string(&Manifest { kernels, ..manifest }).expect("it is JSON");
    write(&directory.join("manifest.json"), text.as_bytes())?;
    tuner(&all.join("tune"))?;
    println!("{}", directory.join("manifest.json").display());
    Ok(())
}

/// Builds what measures, to `to`.
fn tuner(to: &Path) -> Result<(), String> {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(paths::root()).args(["build", "--quiet", "--release", "--package", "monomorph-tune"]);
    run(&mut cargo)?;
    let built = paths::root().join("target/release/tune");
    std::fs::copy(&built, to).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(())
}

fn bucket(name: &str) -> Result<Option<usize>, String> {
    match name.parse() {
        Ok(rows) => Ok(Some(rows)),
        Err(_) if name == "prefill" => Ok(None),
        Err(_) => Err(format!("`{name}` is no bucket: a number of rows, or `prefill`")),
    }
}

/// The target as the hardware's defaults cut it: what an earlier tuning says is neither a start nor lost
/// unseen.
fn untuned(mut target: Target, buckets: &[Option<usize>]) -> Result<Target, String> {
    let name = target.name();
    let Some(tuning) = target.tuning.take() else {
        return Err(format!("{name} is no CUDA target: nothing is tuned"));
    };
    if let Provenance::Measured { file, .. } = &tuning.provenance {
        let refuse = |what: String| Err(format!("{}: {what}", file.display()));
        if tuning.knobs != tuning.defaults || tuning.phases.values().any(|phase| !phase.all.is_empty()) {
            return refuse(
                "it has figures for every bucket, which tuning would lose: remove the file".to_owned(),
            );
        }
        let mut measured = tuning.phases.values().flat_map(|phase| phase.buckets.keys());
        if let Some(lost) = measured.find(|it| !buckets.contains(it)) {
            let lost = lost.map_or("prefill".to_owned(), |rows| rows.to_string());
            return refuse(format!("it has figures of bucket {lost}: measure that too, or remove the file"));
        }
    }
    let Tuning { defaults, .. } = tuning;
    let provenance = Provenance::Defaults;
    target.tuning = Some(Tuning { defaults, knobs: defaults, phases: BTreeMap::new(), provenance });
    Ok(target)
}

fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    let problem = |error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(path.parent().expect("files stand in a directory")).map_err(problem)?;
    std::fs::write(path, content).map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_tune::choice::{PhaseResult, ProgramResult, Results, tuning_file};

    fn program(name: &str, bucket: &str, what: &str, phases: Vec<PhaseResult>) -> ProgramResult {
        let [name, bucket, what] = [name, bucket, what].map(str::to_owned);
        let (before, after, rows) = (vec![2.0, 3.0], vec![1.5, 2.5], Vec::new());
        ProgramResult { name, bucket, what, before, after, phases, rows }
    }

    fn phase(phase: &str, settings: &[(&str, u32)]) -> PhaseResult {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        PhaseResult { phase: phase.to_owned(), settings, before: 7.5, after: 6.25 }
    }

    #[test]
    fn what_the_tuner_writes_the_loader_reads() {
        let qkv = phase("attention_qkv", &[("stage_bytes", 8192), ("ring_stages", 12)]);
        let [card, date, command] = ["NVIDIA \"H200\"", "2026-11-21", "cargo xtask tune"].map(str::to_owned);
        let stays = || program("decode_64", "64", "64 rows", Vec::new());
        let programs = vec![
            program("decode_1", "1", "1 rows", vec![qkv]),
            stays(),
            program("prefill", "prefill", "2048 tokens", vec![phase("ffn_down", &[("gemm_stages", 6)])]),
        ];
        let results = Results { card, date, command, programs };
        let text = tuning_file(&results).expect("something is worth a figure");
        assert!(tuning_file(&Results { programs: vec![stays()], ..results }).is_none());
        assert_eq!(text, include_str!("tune/example.toml"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tuning/h200/llama-3.1-8b/fp8.toml");
        write(&file, text.as_bytes()).unwrap();
        // A directory of targets has one or the other besides.
        std::fs::create_dir(directory.path().join("models")).unwrap();
        let search = [directory.path().to_owned(), paths::targets()];
        let target = spec::load(&search, "h200/llama-3.1-8b/fp8").unwrap_or_else(|error| panic!("{error}"));
        let tuning = target.tuning.as_ref().unwrap();
        let qkv = tuning.of("attention_qkv", Some(1));
        assert_eq!([qkv.ring_stages, qkv.stage_bytes], [12, 8192]);
        assert_eq!(tuning.of("attention_qkv", Some(64)), tuning.defaults);
        assert_eq!(tuning.of("ffn_down", None).gemm_stages, 6);
        assert!(matches!(&tuning.provenance, Provenance::Measured { card, .. } if card == "NVIDIA \"H200\""));

        // What would be lost is refused; what is measured again begins at the defaults.
        assert!(untuned(target.clone(), &[Some(1)]).unwrap_err().contains("figures of bucket prefill"));
        let again = untuned(target, &[Some(1), None]).unwrap().tuning.unwrap();
        assert_eq!((again.knobs, again.phases.len()), (again.defaults, 0));
    }
}

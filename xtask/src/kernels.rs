//! `cargo xtask kernels`: compiles and inspects the kernels of GPU targets, each distinct kernel once,
//! without building a server. Kernels of the committed list are known; a sample of them is compiled again.

use crate::paths;
use clap::Args;
use monomorph_compiler::passes::unbuilt;
use monomorph_compiler::spec::types::{BuildOptions, HardwareKind, Target};
use monomorph_compiler::toolchain::kernels::{self, Known, Report, Survey};
use monomorph_compiler::toolchain::listed::{Listed, sampled};
use monomorph_compiler::toolchain::nvcc::Compiler;
use monomorph_compiler::{graph, spec, toolchain};
use std::path::PathBuf;

/// The committed list of what kernels take.
const LIST: &str = "tests/fixtures/kernels.txt";
/// How to bring it up to date.
const BLESS: &str = "`cargo xtask kernels --bless`";
/// Most kernels named of those that are not listed: a change of a header is of hundreds.
const NAMED: usize = 10;

#[derive(Args)]
pub struct Options {
    /// hardware/model/quant, hardware/model or hardware; may be given several times [default: every GPU
    /// target].
    #[arg(long, value_name = "TARGET")]
    target: Vec<String>,
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    /// Also build with --draft, --batch-invariant and --vision: each method that the model has with the
    /// fewest and the most drafts, and the smallest and the largest batch.
    #[arg(long)]
    all: bool,
    /// Build for so many ranks [default: 1].
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// Cache of what kernels take; other checkouts may share it [default: target/cubins/figures].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Compile every kernel, and believe neither the cache nor the committed list.
    #[arg(long)]
    fresh: bool,
    /// Bless: rewrite the committed list, tests/fixtures/kernels.txt, instead of comparing with it.
    #[arg(long, conflicts_with_all = ["target", "targets_dir", "all", "tp"])]
    bless: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Whether these are the kernels of the list: those of every GPU target as it ships.
    fn whole(&self) -> bool {
        self.target.is_empty() && self.targets_dir.is_none() && !self.all && self.tp.is_none()
    }
}

pub fn kernels(options: Options) -> Result<(), String> {
    let (root, path) = (paths::root(), paths::root().join(LIST));
    let compiler = Compiler::find(&root).map_err(|error| error.to_string())?;
    let listed = match Listed::read(&path) {
        Ok(listed) => listed,
        // It may be in conflict after a merge.
        Err(_) if options.bless => Listed::new(&compiler),
        Err(error) => return Err(format!("{error}: {BLESS} writes it")),
    };
    let comparable = listed.is_of(&compiler);
    if !comparable {
        eprintln!("{LIST} is of another nvcc: every kernel is compiled, and none compared with it");
    }
    let report = survey(&options, &compiler, &listed)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?);
    } else {
        print!("{}", kernels::text(&report));
    }
    fit(&report)?;
    if options.bless {
        return report.list.write(&path).map_err(|error| error.to_string());
    }
    if comparable { as_listed(&report, options.whole()) } else { Ok(()) }
}

fn fit(report: &Report) -> Result<(), String> {
    match report.defects.len() {
        0 => Ok(()),
        count => Err(format!("{count} kernels are not fit to ship")),
    }
}

/// Refuses figures that differ from the list, and where all targets were surveyed also a list with kernels
/// too few or too many.
fn as_listed(report: &Report, whole: bool) -> Result<(), String> {
    let Report { differing, unlisted, stale, .. } = report;
    let mut wrong = differing.clone();
    if whole && !unlisted.is_empty() {
        wrong.push(format!("{} kernels are fit and not in {LIST}:", unlisted.len()));
        wrong.extend(unlisted.iter().take(NAMED).cloned());
        wrong.extend((unlisted.len() > NAMED).then(|| format!("and {} more", unlisted.len() - NAMED)));
    }
    if whole && !stale.is_empty() {
        let first = &stale[0];
        wrong.push(format!("{} lines of {LIST} are of no kernel, {first} the first", stale.len()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{BLESS} rewrites the list", wrong.join("\n"))) }
}

fn survey(options: &Options, compiler: &Compiler, listed: &Listed) -> Result<Report, String> {
    let root = paths::root();
    let mut survey = Survey::new(&root, compiler);
    for target in targets(options)? {
        let builds = if options.all { spec::variants(&target) } else { Vec::new() };
        for build in std::iter::once(target).chain(builds) {
            let plan = match toolchain::plan(&build) {
                Ok(plan) => plan,
                // Sizes that so many ranks cannot share.
                Err(why) if build.ranks > 1 => {
                    eprintln!("{} is left out: {why}", build.build());
                    continue;
                }
                Err(why) => return Err(format!("{}: {why}", build.build())),
            };
            survey.add(&plan).map_err(|error| error.to_string())?;
        }
    }
    let cache = options.cache.clone().unwrap_or_else(|| root.join(kernels::STORE));
    // A line for each tenth, so that a log shows progress.
    let progress = |done: usize, of: usize, added: usize| {
        if done * 10 / of != (done - added) * 10 / of {
            eprintln!("{done} of {of} kernels compiled");
        }
    };
    let known = Known { cache: &cache, listed, again: sampled, fresh: options.fresh };
    survey.compile(&known, &progress).map_err(|error| error.to_string())
}

/// The requested GPU targets. One that cannot be loaded is an error: a target that ships must build. One that
/// only its hardware is too small for, or whose blocks have no kernels yet, is left out, and named, unless it
/// was asked for by its whole name.
fn targets(options: &Options) -> Result<Vec<Target>, String> {
    let search = paths::search(options.targets_dir.as_deref());
    let catalogue = spec::catalogue(&search).map_err(|error| error.to_string())?;
    let mut gpus = Vec::new();
    for entry in &catalogue.hardware {
        let hardware = spec::load_hardware(&search, &entry.name).map_err(|error| error.to_string())?;
        if matches!(hardware.kind, HardwareKind::Cuda(_)) {
            gpus.push(format!("{}/", entry.name));
        }
    }
    let mut names = catalogue.targets();
    names.retain(|name| gpus.iter().any(|gpu| name.starts_with(gpu)));
    let build = BuildOptions { ranks: options.tp, ..BuildOptions::default() };
    let mut targets = Vec::new();
    for name in chosen(names, &options.target)? {
        match spec::load_with(&search, &name, &build) {
            Ok(target) => {
                let graph = graph::build(&target.model, &target.quant);
                match unbuilt::lacks(&target, &graph).filter(|_| !options.target.contains(&name)) {
                    Some(lacks) => eprintln!("{name} is left out: there are no kernels for {lacks}"),
                    None => targets.push(target),
                }
            }
            Err(error) if error.list().iter().all(|it| it.too_large) && !options.target.contains(&name) => {
                eprintln!("{name} is left out: its hardware is too small");
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(targets)
}

/// The targets whose names, or first parts of names, are requested; all if none are.
fn chosen(mut names: Vec<String>, asked: &[String]) -> Result<Vec<String>, String> {
    let is_of = |name: &str, asked: &str| {
        name.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(unknown) = asked.iter().find(|asked| !names.iter().any(|name| is_of(name, asked))) {
        return Err(format!(
            "{unknown} is no GPU target, nor the hardware or hardware/model of one: `cargo xtask list` prints all targets"
        ));
    }
    names.retain(|name| asked.is_empty() || asked.iter().any(|asked| is_of(name, asked)));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::{Options, chosen, targets};
    use monomorph_compiler::spec::variants;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|it| (*it).to_owned()).collect()
    }

    #[test]
    fn targets_are_chosen_by_whole_parts_of_their_names() {
        let all = ["h100/a/x", "h200/a/x", "h200/a/xy", "h200/ab/x"];
        let of = |asked: &[&str]| chosen(texts(&all), &texts(asked));
        assert_eq!(of(&[]), Ok(texts(&all)));
        assert_eq!(of(&["h200"]), Ok(texts(&all[1..])));
        assert_eq!(of(&["h200/a"]), Ok(texts(&all[1..3])));
        assert_eq!(of(&["h200/a/x", "h100"]), Ok(texts(&all[..2])));
        for wrong in ["h", "h200/", "a", "cpu"] {
            assert!(of(&[wrong]).is_err_and(|why| why.starts_with(wrong)), "{wrong}");
        }
    }

    /// Every quant spec is paired with every GPU, and none is skipped but what is larger than its memory, and
    /// products in fp8 where there is no `wgmma`.
    #[test]
    fn every_quant_spec_is_surveyed_on_every_gpu() {
        let options = Options {
            target: Vec::new(),
            targets_dir: None,
            all: true,
            tp: None,
            cache: None,
            fresh: false,
            bless: false,
            json: false,
        };
        let all = targets(&options).unwrap_or_else(|error| panic!("{error}"));
        let of = |hardware: &str| -> Vec<String> {
            let of = all.iter().filter(|it| it.hardware.name == hardware);
            of.map(|it| format!("{}/{}", it.model.name, it.quant.name)).collect()
        };
        let (of_h200, large) = (of("h200"), ["minimax-m2.7/nvfp4", "qwen3.5-122b/fp8"]);
        let mut small = of_h200.clone();
        small.retain(|it| !large.contains(&it.as_str()));
        assert!(all.len() >= 61 && of_h200.len() == small.len() + large.len());
        assert_eq!(of("h100"), small);
        small.retain(|it| it != "qwen3.6-35b/fp8a8");
        assert_eq!(of("gb10"), small);
        let draws = |name: &str| {
            let target = all.iter().find(|it| it.name() == name).expect("it ships");
            variants(target).iter().map(|it| it.build().replace(name, "")).collect::<Vec<_>>()
        };
        let hybrid = draws("h200/qwen3.5-35b/nvfp4");
        assert!(
            ["+mtp1", "+mtp3", "+ngram7"].iter().all(|it| hybrid.contains(&(*it).to_owned())),
            "{hybrid:?}"
        );
        let plain = draws("h200/llama-3.2-1b/bf16");
        assert!(plain.iter().all(|it| !it.contains("mtp")) && plain.len() >= 4, "{plain:?}");
    }
}

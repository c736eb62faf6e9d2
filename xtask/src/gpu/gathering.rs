//! The store and what is built into it, a piece at a time.

use super::files::copy;
use super::{parts, programs};
use crate::test::CUDA;
use crate::{TargetOptions, fetch, paths};
use monomorph_compiler::plan::profile::ProfiledKind;
use monomorph_compiler::plan::{Cost, Given, Plan};
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption, Ranks, Target};
use monomorph_compiler::toolchain::python::run;
use monomorph_compiler::toolchain::{self, Built};
use monomorph_compiler::{graph, passes, spec};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const SMOLLM2: &str = "smollm2-135m/q4_1";
/// Tokens that a measured sequence generates; its cache is counted as it is in the middle of them.
const GENERATE: usize = 128;
/// A choice that differs from the interpreter's counts as a tie if its margin is at most this.
const TIE: f64 = 1e-3;
/// Servers that run with made-up weights under compute-sanitizer: with products in f16 and in f64. racecheck
/// records every shared memory access of a launch on the host (for a prompt of 12 on smollm2-135m more than
/// 128 GB), so it runs on models of the goldens.
const SANITIZED: [(&str, &str); 6] = [
    ("memcheck", "llama-3.2-1b/bf16"),
    ("memcheck", "smollm2-135m/q4_1"),
    ("racecheck", "llama-aligned/bf16"),
    ("racecheck", "llama-aligned/q4_1-int8-block32"),
    ("racecheck", "qwen3-next/bf16"),
    ("racecheck", "qwen35-moe-text/bf16"),
];

/// Most sequences in the one decode program of a batch-invariant server.
pub(super) const JOINED: usize = 32;

/// Servers whose sequences are swapped: lengths of prompts, tokens that the blocks hold, and GB of host
/// memory for copies.
const ENGINES: [(&str, [usize; 2], usize, f64); 2] =
    [(SMOLLM2, [100, 600], 2048, 0.02), ("qwen3.5-35b/nvfp4", [1000, 3000], 10_240, 0.18)];
/// Most concurrent sequences of these servers.
const SWAPPED: usize = 16;
/// Ids that every tokenizer has, including the stand-in used with made-up weights.
const VOCABULARY: usize = 256;

/// Tokens of the prompts whose kernels are timed.
const PROFILED: [usize; 3] = [128, 1024, 8192];

/// The server of several processes that serves, and whose processes are killed.
const KILLED: &str = "llama-3.2-1b/bf16";

/// Models whose sequences join and leave batches that are also built to draft with their own layers.
const DRAFTED: [&str; 2] = ["qwen3-next/bf16", "qwen35-moe-text/bf16"];

/// Everything below `target/gpu` once a build is complete.
pub(super) struct Gathering {
    pub(super) out: PathBuf,
    pub(super) store: PathBuf,
    pub(super) hardware: String,
    /// How GPUs share the servers whose answers are checked; `None` for one GPU.
    pub(super) ranks: Option<Ranks>,
    /// Directories in which targets are looked up.
    pub(super) search: Vec<PathBuf>,
    pub(super) executables: Vec<String>,
    /// Targets of all goldens, images and joins that could be gathered.
    pub(super) named: Vec<String>,
    /// What could not be built; `run.py` reports it as missing.
    pub(super) problems: Vec<String>,
}

impl Gathering {
    /// The programs of tests/cuda, and those that only measure.
    pub(super) fn programs(
        &mut self,
        wanted: &[String],
        instruments: bool,
        there: bool,
    ) -> Result<(Value, Value), String> {
        let target = spec::load(&self.search, &self.target(SMOLLM2)).map_err(|error| error.to_string())?;
        let card = target.hardware.cuda().ok_or_else(|| format!("{} is no CUDA hardware", self.hardware))?;
        let built = programs::build(card, &self.store, wanted, instruments, there)?;
        self.problems.extend(built.problems);
        let files = built.programs.iter().chain(&built.instruments).filter_map(|it| it["file"].as_str());
        self.executables.extend(files.map(str::to_owned).collect::<BTreeSet<_>>());
        Ok((json!(built.programs), json!(built.instruments)))
    }

    /// Options of the servers whose answers are checked.
    pub(super) fn checked(&self) -> BuildOptions {
        let plain = BuildOptions::default();
        self.ranks.map_or(plain, |ranks| ranks.of(plain))
    }

    /// `hardware/model/quant`.
    pub(super) fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.hardware)
    }

    /// Builds a server into the store and returns its path there. One that cannot be built is noted, and its
    /// path is returned all the same.
    pub(super) fn server(&mut self, name: &str, options: &BuildOptions, racecheck: bool) -> String {
        let target = self.target(name);
        let loaded = spec::load_with(&self.search, &target, options);
        let loaded = loaded.map(|target| Target { racecheck, ..target });
        let build = loaded.as_ref().map_or_else(|_| target.clone(), Target::build);
        let place = format!("servers/{}/server", build.trim_start_matches(&format!("{}/", self.hardware)));
        eprintln!("building {build}");
        let built = match loaded {
            Ok(target) => toolchain::build_target(&paths::root(), &target).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_string()),
        };
        let copied = built.and_then(|built| match built {
            Built::Server(server) => copy(&server, &self.store.join(&place)),
            Built::Crate { why, .. } => Err(why),
        });
        match copied {
            Ok(()) => self.executables.push(place.clone()),
            Err(why) => self.problems.push(format!("{build}: {why}")),
        }
        place
    }

    /// Writes and lists the targets of the goldens with the interpreter's logits.
    pub(super) fn cases(&self, cases: &Path) -> Result<Vec<Value>, String> {
        let ranks = self.ranks.map(|it| [it.flag().to_owned(), it.count.to_string()]);
        run(of_tests("gpu_cases").arg(cases).arg(&self.hardware).args(ranks.into_iter().flatten()))?;
        listed(&cases.join("cases.json"))
    }

    /// The texts that no target contains of all goldens, images and joins that could be gathered.
    pub(super) fn unnamed<'a>(&self, wanted: &'a [String]) -> Vec<&'a str> {
        let named = |text: &&String| self.named.iter().any(|name| name.contains(*text));
        wanted.iter().filter(|text| !named(text)).map(String::as_str).collect()
    }

    /// The cases whose target contains a `wanted` text and is not refused; all are noted as named.
    fn chosen<'a>(&mut self, all: &'a [Value], wanted: &[String]) -> Result<Vec<&'a Value>, String> {
        let mut chosen = Vec::new();
        for case in all {
            let name = case["name"].as_str().ok_or("a case has no name")?;
            self.named.push(name.to_owned());
            if !wanted.iter().any(|text| name.contains(text)) {
                continue;
            }
            match case["refused"].as_str() {
                Some(why) => eprintln!("{name} is left out, for the compiler refuses it: {why}"),
                None => chosen.push(case),
            }
        }
        Ok(chosen)
    }

    /// Copies a directory into the store.
    fn carry(&self, directory: &Path, at: &str) -> Result<(), String> {
        for file in parts::walk(directory)? {
            let below = file.strip_prefix(directory).expect("it stands there");
            copy(&file, &self.store.join(at).join(below))?;
        }
        Ok(())
    }

    /// Servers of the goldens.
    pub(super) fn goldens(
        &mut self,
        cases: &Path,
        all: &[Value],
        wanted: &[String],
    ) -> Result<Value, String> {
        let mut goldens = Vec::new();
        for case in self.chosen(all, wanted)? {
            let name = case["name"].as_str().unwrap_or_default();
            let directory = case["directory"].as_str().ok_or("a case has no directory")?;
            self.carry(&cases.join(directory), directory)?;
            let server = self.server(without_hardware(name), &self.checked(), false);
            let at = |file: &str| format!("{directory}/{file}");
            goldens.push(json!({
                "name": name, "server": server, "bound": case["bound"],
                "context": case["context"], "vocabulary": case["vocabulary"],
                "weights": at("weights"), "tokens": at("tokens.json"), "expected": at("expected.safetensors"),
                "bounds": at("bounds.safetensors"),
                "golden": if case["golden"] == true { json!(at("golden.safetensors")) } else { Value::Null },
            }));
        }
        Ok(json!(goldens))
    }

    /// Servers of goldens with vision towers, and what they are asked about images.
    pub(super) fn images(&mut self, cases: &Path, wanted: &[String]) -> Result<Value, String> {
        let cases = cases.join("images");
        std::fs::create_dir_all(&cases).map_err(|error| format!("{}: {error}", cases.display()))?;
        run(of_tests("gpu_images").arg(&cases).arg(&self.hardware))?;
        let all = listed(&cases.join("images.json"))?;
        let options = BuildOptions { vision: true, ..self.checked() };
        self.search.insert(0, cases.join("targets"));
        let mut images = Vec::new();
        for case in self.chosen(&all, wanted)? {
            let [name, weights, asked] =
                ["name", "weights", "asked"].map(|key| case[key].as_str().unwrap_or_default());
            let at = |file: &str| format!("images/{file}");
            self.carry(&cases.join(weights), &at(weights))?;
            copy(&cases.join(asked), &self.store.join(at(asked)))?;
            images.push(json!({
                "name": name, "server": self.server(without_hardware(name), &options, false),
                "weights": at(weights), "asked": at(asked), "flags": case["flags"],
            }));
        }
        self.search.remove(0);
        Ok(json!(images))
    }

    /// Servers of the goldens in one process and in several; and one of each that serves made-up weights.
    pub(super) fn hosts(
        &mut self,
        cases: &Path,
        all: &[Value],
        wanted: &[String],
        hosts: usize,
    ) -> Result<Value, String> {
        let one = self.checked();
        let several = BuildOptions { hosts: Some(hosts), ..one };
        let mut goldens = self.goldens(cases, all, wanted)?;
        for case in goldens.as_array_mut().into_iter().flatten() {
            let name = without_hardware(case["name"].as_str().unwrap_or_default()).to_owned();
            case["several"] = json!(self.server(&name, &several, false));
        }
        let killed = json!({
            "name": format!("{} of {hosts} processes", self.target(KILLED)),
            "server": self.server(KILLED, &one, false),
            "several": self.server(KILLED, &several, false),
            "flags": ["--context", "4096", "--kv-tokens", "65536"],
            "tokens": 4000,
        });
        Ok(json!({ "processes": hosts, "goldens": goldens, "killed": killed }))
    }

    /// Batch-invariant servers whose sequences join and leave batches.
    pub(super) fn joins(&mut self, cases: &Path, wanted: &[String]) -> Result<Value, String> {
        let cases = cases.join("joins");
        std::fs::create_dir_all(&cases).map_err(|error| format!("{}: {error}", cases.display()))?;
        run(of_tests("gpu_joins").arg(&cases))?;
        let mut all = listed(&cases.join("joins.json"))?;
        self.named.extend(all.iter().filter_map(|case| case["name"].as_str().map(str::to_owned)));
        all.retain(|case| {
            wanted.iter().any(|text| case["name"].as_str().is_some_and(|name| name.contains(text)))
        });
        let options = BuildOptions { batch_invariant: Some(JOINED), ..self.checked() };
        let draft =
            DraftOption { method: DraftMethod::Layers, drafts: 2, vocabulary: None, forced_acceptance: None };
        let drafting = BuildOptions { draft: Some(draft), ..self.checked() };
        self.search.insert(0, cases.join("targets"));
        // Those of experts that ranks cannot share, or of none.
        if let Some(ranks) = self.ranks.filter(|ranks| ranks.whole_experts) {
            all.retain(|case| match self.planned(case["name"].as_str().unwrap_or_default(), &options) {
                Ok(_) => true,
                Err(why) => {
                    eprintln!("{} is left out of `{}`: {why}", case["name"], ranks.flag());
                    false
                }
            });
        }
        for case in &mut all {
            let name = case["name"].as_str().ok_or("a case has no name")?.to_owned();
            let weights = PathBuf::from(case["directory"].as_str().ok_or("a case has no directory")?);
            let at = format!("joins/{name}");
            self.carry(&weights, &at)?;
            case["server"] = json!(self.server(&name, &options, false));
            if DRAFTED.contains(&name.as_str()) {
                case["plain"] = json!(self.server(&name, &self.checked(), false));
                case["drafting"] = json!(self.server(&name, &drafting, false));
            }
            (case["weights"], case["sequences"]) = (json!(at), json!(JOINED));
        }
        self.search.remove(0);
        Ok(json!(all))
    }

    /// Servers that swap are batch-invariant, so that a sequence is bit for bit the same as when it runs
    /// alone.
    pub(super) fn engine(&mut self) -> Value {
        let invariant = BuildOptions { batch_invariant: Some(SWAPPED), ..BuildOptions::default() };
        let lookup =
            DraftOption { method: DraftMethod::Ngram, drafts: 3, vocabulary: None, forced_acceptance: None };
        let lookup = BuildOptions { draft: Some(lookup), ..BuildOptions::default() };
        let plain = self.server(SMOLLM2, &BuildOptions::default(), false);
        let looked_up = self.server(SMOLLM2, &lookup, false);
        let name = self.target(SMOLLM2);
        let mut cases = vec![
            json!({
                "check": "looked up", "name": name, "server": looked_up, "plain": plain, "vocabulary": VOCABULARY,
                "prompts": [32, 512],
            }),
            json!({ "check": "cut", "name": name, "server": plain, "longest": 8192 }),
        ];
        for (name, prompts, tight, space) in ENGINES {
            let server = self.server(name, &invariant, false);
            cases.push(json!({
                "check": "swapped", "name": self.target(name), "server": server, "vocabulary": VOCABULARY,
                "prompts": prompts, "tight": tight, "space": space,
            }));
            if name != SMOLLM2 {
                cases.push(json!({
                    "check": "fewer", "name": self.target(name), "server": server, "vocabulary": VOCABULARY,
                    "prompts": prompts,
                }));
            }
        }
        cases.into()
    }

    /// Prompts are short and use ids that every vocabulary has.
    pub(super) fn sanitized(&mut self) -> Value {
        let case = |(tool, name)| {
            let server = self.server(name, &BuildOptions::default(), tool == "racecheck");
            json!({ "name": self.target(name), "server": server, "tool": tool, "context": 256, "vocabulary": 32 })
        };
        SANITIZED.map(case).into()
    }

    /// SmolLM2's weights, in the store.
    fn smollm2_weights(&self) -> Result<String, String> {
        let weights = fetch::weights(&TargetOptions { target: self.target(SMOLLM2), targets_dir: None })?;
        let name = format!("smollm2/{}", weights.file_name().unwrap_or_default().to_string_lossy());
        copy(&weights, &self.store.join(&name))?;
        Ok(name)
    }

    /// A batch-invariant server, whose answers do not depend on who else asks.
    pub(super) fn storm(&mut self) -> Result<Value, String> {
        let invariant = BuildOptions { batch_invariant: Some(SWAPPED), ..BuildOptions::default() };
        let (server, weights) = (self.server(SMOLLM2, &invariant, false), self.smollm2_weights()?);
        Ok(json!([{
            "name": self.target(SMOLLM2), "server": server, "weights": weights, "vocabulary": 40_000, "ranks": 1,
        }]))
    }

    pub(super) fn smollm2(&mut self) -> Result<Value, String> {
        let server = self.server(SMOLLM2, &BuildOptions::default(), false);
        let name = self.smollm2_weights()?;
        let fixtures = paths::root().join("tests/fixtures");
        let read = |name: &str| -> Result<Value, String> {
            let text = std::fs::read(fixtures.join(name)).map_err(|error| format!("{name}: {error}"))?;
            serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))
        };
        let prompts = read("smollm2/llama_cpp.json")?["prompts"].clone();
        let oracle = read("smollm2/oracle.json")?;
        let column = |of: &Value, key: &str| -> Vec<Value> {
            of.as_array().into_iter().flatten().map(|it| it[key].clone()).collect()
        };
        let texts = parts::walk(&fixtures.join("prompts"))?
            .iter()
            .map(|path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(json!({
            "name": self.target(SMOLLM2), "server": server, "weights": name, "crowd": name, "tie": TIE,
            "context": 8192, "texts": texts,
            "names": column(&prompts, "name"), "prompts": column(&prompts, "prompt"),
            "ids": column(&oracle, "ids"), "margins": column(&oracle, "margins"),
        }))
    }

    /// A profiling build of what is measured, and the sizes of steps whose kernels are timed.
    pub(super) fn profile(&mut self, name: &str) -> Result<Value, String> {
        let options = BuildOptions { profile: true, ..BuildOptions::default() };
        let (server, plan) = (self.server(name, &options, false), self.planned(name, &options)?);
        let kinds = || plan.profiled().into_iter().map(|step| step.kind);
        let batch = kinds().filter_map(|kind| match kind {
            ProfiledKind::Decode(sequences) => Some(sequences),
            ProfiledKind::Prompt(_) => None,
        });
        let prompts = kinds().filter_map(|kind| match kind {
            ProfiledKind::Prompt(tokens) if PROFILED.contains(&tokens) => Some(tokens),
            ProfiledKind::Prompt(_) | ProfiledKind::Decode(_) => None,
        });
        Ok(json!({
            "name": self.target(name), "server": server, "batch": batch.collect::<Vec<_>>(),
            "prompt_tokens": prompts.collect::<Vec<_>>(),
        }))
    }

    /// The plan of a build.
    fn planned(&self, name: &str, options: &BuildOptions) -> Result<Plan, String> {
        let target = spec::load_with(&self.search, &self.target(name), options);
        let target = target.map_err(|error| error.to_string())?;
        let plan = passes::assemble::plan(&target, &graph::build(&target.model, &target.quant));
        plan.map_err(|error| error.to_string())
    }

    /// What is measured on one server, and the figures its limits derive from; if `long`, after long contexts
    /// too, with more than one sequence. One that has a tower is also shown `images` of these sizes.
    pub(super) fn bench(
        &mut self,
        name: &str,
        options: &BuildOptions,
        long: bool,
        images: &[String],
    ) -> Result<Value, String> {
        let server = self.server(name, options, false);
        let plan = self.planned(name, options)?;
        let target = &plan.target;
        let decode = total(&plan, 1, 1, 0);
        // More sequences touch more experts.
        let weights = |batch: usize| total(&plan, batch, batch, 0).weight_bytes;
        let run = |name: &str,
                   depth: usize,
                   batch: &[usize],
                   streams: &[usize],
                   prompt: usize,
                   repeat: usize| {
            let prefill = total(&plan, prompt, 1, 0);
            let middle = depth + GENERATE / 2;
            json!({
                "name": name, "depth": depth, "generate": GENERATE, "prompt": prompt, "batch": batch, "streams": streams,
                "repeat": repeat,
                "kv_bytes": total(&plan, 1, 1, middle).kv_bytes,
                "prefill_limit": prompt as f64 / prefill.floor(&target.hardware),
            })
        };
        let most = plan.buckets.sequences;
        let batches: Vec<usize> = [1, 8, 32, 64, 128].into_iter().filter(|batch| *batch <= most).collect();
        let mut runs = vec![run("at 128", 128, &batches, &[1, most.min(64)], 8192, 3)];
        if target.model.context >= 32_768 {
            let batch: &[usize] = if long { &[1, 8] } else { &[1] };
            runs.push(run("at 32k", 32_768 - GENERATE, batch, &[0], 128, 3));
        }
        if long && target.model.context >= 131_072 {
            let depth = 131_072 - GENERATE;
            // Keys and values of eight in bf16 are more than a card holds.
            let held = |batch: usize| {
                let kept = total(&plan, 1, 1, depth).kv_bytes * batch as f64;
                kept + weights(batch) < 0.9 * target.hardware.memory_bytes as f64
            };
            let batches = [("at 128k", 1), ("at 128k, 8 of them", 8)];
            for (name, batch) in batches.into_iter().filter(|(_, batch)| held(*batch)) {
                runs.push(run(name, depth, &[batch], &[0], 128, 3));
            }
        }
        if options.vision {
            let mut seen = run("images", 128, &[1], &[0], 512, 5);
            seen["images"] = json!(images);
            runs.push(seen);
        }
        let weights: serde_json::Map<String, Value> =
            batches.iter().map(|batch| (batch.to_string(), json!(weights(*batch)))).collect();
        Ok(json!({
            "target": target.build(), "server": server, "context": target.model.context,
            "ranks": target.ranks, "processes": target.hosts, "runs": runs,
            "costs": {
                "bandwidth": target.hardware.bandwidth,
                "weight_bytes": weights,
                "state_bytes": decode.state_bytes,
            },
        }))
    }
}

/// A program of the tests' crate, still without arguments. It is selected from the whole workspace, with the
/// features that the checks build it with: by itself it would be compiled once more, and the compiler too.
pub(super) fn of_tests(program: &str) -> Command {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(paths::root());
    cargo.args(["run", "--quiet", CUDA, "--bin", program, "--"]);
    cargo
}

/// What a program of the tests' crate lists.
fn listed(path: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// `model/quant` of `hardware/model/quant`.
fn without_hardware(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, rest)| rest)
}

/// The cost of a whole step.
fn total(plan: &Plan, tokens: usize, outputs: usize, context: usize) -> Cost {
    let phases = plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
    let given = Given { tokens, outputs, context };
    phases.fold(Cost::default(), |sum, phase| sum + plan.cost(phase, given))
}

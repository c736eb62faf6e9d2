//! A profiling build on an emulated card (tests/emulated): its server computes what others do, and lists each
//! launch of the plan once, with the bytes of its phase. Times there are no measure.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::Regime;
use monomorph_compiler::plan::{Given, Phase};
use monomorph_compiler::spec::types::Compute;
use monomorph_compiler::{graph, passes, spec};
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::feedings::{case, run};
use monomorph_tests::goldens::golden;
use monomorph_tests::logits::read;
use monomorph_tests::root;
use serde_json::Value;
use std::path::Path;

/// Experts with a shared one beside them, recurrent state and attention.
const GOLDEN: &str = "qwen35-moe-text";
/// Largest distance between rows with operands rounded to f16.
const F16: f32 = 2e-2;
/// Sequences at a time, of each step that is timed.
const BATCHES: [usize; 2] = [1, 16];
/// Tokens of the prompt.
const PROMPT: usize = 32;
/// A round of three steps begins after eleven tokens.
const FLAGS: &str = "--batch 1,16 --prompt-tokens 32 --depth 5 --steps 3 --repeat 1 --threads 1";
const CONTEXT: usize = 12;

fn profile(server: &Server, weights: &Path) -> Value {
    let mut command = server.command();
    command.args(["profile", "--json", "--weights"]).arg(weights).args(FLAGS.split(' '));
    let output = command.output().expect("the server starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{words}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}"))
}

/// What is said of a step: bodies, phases and kernels in order, and the bytes of each phase.
fn said(step: &Value) -> Vec<(String, Vec<String>, f64)> {
    let text = |of: &Value| of.as_str().expect("it is text").to_owned();
    let phases = step["phases"].as_array().expect("a step has phases").iter();
    phases
        .map(|it| {
            let launches = it["launches"].as_array().expect("a phase has launches").iter();
            let kernels: Vec<String> = launches.clone().map(|it| text(&it["kernel"])).collect();
            let sum: f64 = launches.map(|it| it["microseconds"].as_f64().expect("it is a number")).sum();
            let all = it["microseconds"].as_f64().expect("it is a number");
            assert!(all > 0.0 && (sum - all).abs() <= 1e-6 * all, "{it}");
            let name = format!("{}.{}", text(&it["body"]), text(&it["phase"]));
            (name, kernels, it["bytes"].as_f64().expect("it is a number"))
        })
        .collect()
}

/// The same by the plan, of programs of these names.
fn planned(plan: &Plan, programs: &[&str], cost: impl Fn(&Phase) -> f64) -> Vec<(String, Vec<String>, f64)> {
    let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
    let mut all: Vec<(String, Vec<String>, f64)> = Vec::new();
    for name in programs {
        let program = cuda.programs.iter().find(|it| it.name == *name).expect("it is planned");
        for (at, (run, _)) in plan.schedule.iter().enumerate() {
            if plan.schedule[..at].iter().any(|(other, _)| other == run) {
                continue;
            }
            let (body, launches) = (&plan.bodies[run.0], &program.bodies[run.0]);
            let times = plan.schedule.iter().filter(|(other, _)| other == run).count();
            let mut of_body: Vec<(usize, Vec<String>)> = Vec::new();
            for launch in launches {
                let kernel = cuda.kernel(launch.kernel).name.clone();
                match of_body.iter_mut().find(|(other, _)| *other == launch.phase) {
                    Some((_, kernels)) => kernels.push(kernel),
                    None => of_body.push((launch.phase, vec![kernel])),
                }
            }
            let begin = all.len();
            let name = |at: usize| format!("{}.{}", body.name, body.phases[at].name);
            all.extend(
                of_body
                    .iter()
                    .map(|(at, it)| (name(*at), it.clone(), times as f64 * cost(&body.phases[*at]))),
            );
            // What has no launch is part of those of the phase in front of it.
            for (at, phase) in body.phases.iter().enumerate().filter(|_| !launches.is_empty()) {
                let bytes = times as f64 * cost(phase);
                if bytes > 0.0 && of_body.iter().all(|(other, _)| *other != at) {
                    let front = (0..at).rev().find(|at| of_body.iter().any(|(other, _)| other == at));
                    let front = name(front.expect("a phase with launches is in front"));
                    let carrier = all[begin..].iter_mut().find(|(name, ..)| name.starts_with(&front));
                    let (name, _, sum) = carrier.expect("it is listed");
                    *name = format!("{name} + {}", phase.name);
                    *sum += bytes;
                }
            }
        }
        let kernels = program.tail.iter().map(|it| cuda.kernel(it.kernel).name.clone());
        all.extend(kernels.map(|it| (format!("sampling.{it}"), vec![it], 0.0)));
    }
    all
}

#[test]
fn each_launch_is_listed_once_with_its_bytes() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let targets = directory.path().join("targets");
    let hardware = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let golden = golden(GOLDEN);
    golden.import_into(&targets, Compute::F16);
    let search = [targets, root().join("targets")];
    let target = spec::load(&search, &format!("{hardware}/{GOLDEN}/bf16"));
    let target = target.and_then(spec::with_profile).unwrap_or_else(|error| panic!("{error}"));
    let plan = passes::assemble::plan(&target, &graph::build(&target.model, &target.quant));
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
    let beside =
        cuda.programs.iter().filter(|it| it.regime == Regime::Decode && BATCHES.contains(&it.sequences));
    let beside = beside.flat_map(|it| it.launches()).filter(|it| it.beside).count();
    assert!(beside > 0, "no launch of the second stream is timed");

    let weights = golden.directory.join("bf16");
    let expected = read(&weights.join("logits.safetensors"));
    let case = case(target, &golden, &weights, Some(expected), F16).expect("it is planned");
    let mut wrong = Vec::new();
    let server = run(&case, &mut wrong, &["prompts", "9 and fewer"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let found = profile(&server, &weights);
    assert_eq!(found["clock"], "events");
    let steps = found["steps"].as_array().expect("there are steps");
    assert_eq!(steps.len(), BATCHES.len() + 1);
    for (step, sequences) in steps.iter().zip(BATCHES) {
        assert_eq!((&step["sequences"], &step["context"]), (&sequences.into(), &(CONTEXT as f64).into()));
        let bytes = |phase: &Phase| {
            let one = plan.cost(phase, Given { tokens: 1, outputs: 1, context: CONTEXT });
            plan.of_sequences(&phase.kind, 1, sequences, &one).memory_bytes()
        };
        compare(&said(step), &planned(&plan, &[&format!("decode_{sequences}")], bytes));
    }
    let prompt = &steps[BATCHES.len()];
    assert_eq!(prompt["prompt_tokens"], PROMPT);
    let bytes =
        |phase: &Phase| plan.cost(phase, Given { tokens: PROMPT, outputs: 1, context: 0 }).memory_bytes();
    let taken = cuda.programs.iter().find(|it| it.regime == Regime::Prefill && it.rows >= PROMPT);
    compare(&said(prompt), &planned(&plan, &[&taken.expect("it takes the prompt").name, "head"], bytes));
}

fn compare(found: &[(String, Vec<String>, f64)], expected: &[(String, Vec<String>, f64)]) {
    let names = |of: &[(String, Vec<String>, f64)]| -> Vec<(String, Vec<String>)> {
        of.iter().map(|(name, kernels, _)| (name.clone(), kernels.clone())).collect()
    };
    assert_eq!(names(found), names(expected));
    for ((name, _, found), (.., expected)) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-9 * expected, "{name}: {found} bytes, not {expected}");
    }
}

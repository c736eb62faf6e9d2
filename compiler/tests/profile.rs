//! What a profiling build knows of its steps: the phases and the figures of the plan, each launch once.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::Regime;
use monomorph_compiler::plan::profile::{ProfiledKind, ProfiledStep};
use monomorph_compiler::plan::{Given, Prediction};
use monomorph_compiler::report::report;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_compiler::{emit, graph, passes, spec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Dense and with experts, with recurrent state, with a sliding window; on a CPU and on cards.
const TARGETS: [&str; 7] = [
    "cpu/smollm2-135m/q4_1",
    "h200/llama-3.1-8b/fp8",
    "h200/qwen3.5-35b/nvfp4",
    "h200/qwen3.6-35b/fp8",
    "gb10/qwen3.5-35b/nvfp4",
    "h200/gemma-4-26b-a4b/bf16",
    "h200/nemotron-3-nano/nvfp4",
];

fn search() -> Vec<PathBuf> {
    vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")]
}

fn plan(name: &str, options: &BuildOptions) -> Plan {
    let target = spec::load_with(&search(), name, options).unwrap_or_else(|error| panic!("{error}"));
    let plan = passes::assemble::plan(&target, &graph::build(&target.model, &target.quant));
    plan.unwrap_or_else(|error| panic!("{error}"))
}

/// Microseconds predicted of a step after so many tokens.
fn predicted(plan: &Plan, step: &ProfiledStep, context: usize) -> f64 {
    let bandwidth = plan.target.hardware.bandwidth;
    let phases = step.phases.iter();
    phases.map(|it| 1e6 * it.times as f64 * it.work.predicted(context as f64, bandwidth)).sum()
}

fn is_close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs()
}

#[test]
fn its_predictions_are_those_that_explain_prints() {
    for name in TARGETS {
        let (plan, profile) =
            (plan(name, &BuildOptions::default()), BuildOptions { profile: true, ..BuildOptions::default() });
        assert_eq!(self::plan(name, &profile).profiled(), plan.profiled(), "{name}");
        let steps = plan.profiled();
        let of = |kind| steps.iter().find(|step| step.kind == kind).expect("it has figures");
        let prompt = predicted(&plan, of(ProfiledKind::Prompt(Prediction::PREFILL_TOKENS)), 0);
        let decode = |step: &ProfiledStep| predicted(&plan, step, Prediction::DECODE_CONTEXT);
        let Some(report) = report(&plan).cuda else {
            assert!(is_close(prompt, 1e6 * plan.prediction.prefill), "{name}: {prompt}");
            let one = decode(of(ProfiledKind::Decode(1)));
            assert!(is_close(one, 1e6 * plan.prediction.decode), "{name}: {one}");
            continue;
        };
        let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
        let programs: BTreeMap<&str, f64> =
            report.programs.iter().map(|it| (it.name.as_str(), it.microseconds)).collect();
        for program in cuda.programs.iter().filter(|it| it.regime == Regime::Decode) {
            let found = decode(of(ProfiledKind::Decode(program.sequences)));
            let expected = programs[program.name.as_str()];
            assert!(is_close(found, expected), "{name}, {}: {found}, not {expected}", program.name);
        }
        // A prompt of 512 is the figure of the program for up to 1,024.
        let taken = cuda.programs.iter().find(|it| it.regime == Regime::Prefill && it.rows >= 512);
        let expected = programs[taken.expect("it takes 512").name.as_str()] + programs["head"];
        assert!(is_close(prompt, expected), "{name}: a prompt {prompt}, not {expected}");
    }
}

#[test]
fn figures_grow_with_the_context_as_the_plan_says() {
    for name in TARGETS {
        let plan = plan(name, &BuildOptions::default());
        let window = plan.sliding().map(|(window, _)| window);
        for step in plan.profiled() {
            let ProfiledKind::Decode(sequences) = step.kind else { continue };
            for context in [0, 1, 96, 127, 128, 4000, plan.target.model.context - 1] {
                for found in &step.phases {
                    let body = plan.bodies.iter().find(|it| it.name == found.body);
                    let Some(body) = body else { continue };
                    let named = found.name.split(" + ").map(|name| {
                        let phase = body.phases.iter().find(|it| it.name == name).expect("it is there");
                        let cost = plan.cost(phase, Given { tokens: 1, outputs: 1, context });
                        plan.of_sequences(&phase.kind, 1, sequences, &cost).memory_bytes()
                    });
                    let expected: f64 = named.sum();
                    let bytes = found.work.bytes_after(context as f64);
                    assert!(
                        is_close(bytes, expected),
                        "{name}, {:?}, {}.{} after {context} (window {window:?}): {bytes}, not {expected}",
                        step.kind,
                        found.body,
                        found.name
                    );
                }
            }
        }
    }
}

#[test]
fn each_phase_is_timed_once_as_it_runs() {
    let plan = plan(TARGETS[0], &BuildOptions::default());
    let names = plan.profiled_names();
    let expected = [
        "embed",
        "attention_qkv",
        "attention",
        "attention_o",
        "ffn_gate_up",
        "ffn_down",
        "select",
        "embedding",
    ];
    for step in plan.profiled() {
        let found: Vec<&str> = step.phases.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(found, expected);
        assert!(step.phases.iter().all(|it| it.rows.len() == 1 && names[it.rows[0]] == it.name));
        let times: Vec<usize> = step.phases.iter().map(|it| it.times).collect();
        assert_eq!(times, [1, 30, 30, 30, 30, 30, 1, 1]);
    }
    let sizes: Vec<ProfiledKind> = plan.profiled().iter().map(|step| step.kind).collect();
    assert_eq!(sizes[..6], [1, 2, 4, 8, 16, 32].map(ProfiledKind::Decode));
    assert_eq!(sizes[6..], [16, 32, 64, 128, 256, 512].map(ProfiledKind::Prompt));
}

#[test]
fn each_launch_is_timed_once_and_none_runs_beside() {
    for name in &TARGETS[1..] {
        let plan = plan(name, &BuildOptions { profile: true, ..BuildOptions::default() });
        let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
        let names = plan.profiled_names();
        for step in plan.profiled() {
            let ProfiledKind::Decode(sequences) = step.kind else { continue };
            let program = cuda.programs.iter().find(|it| it.sequences == sequences).expect("it is there");
            let mut rows: Vec<usize> = step.phases.iter().flat_map(|it| &it.rows).copied().collect();
            rows.sort_unstable();
            let launches: Vec<&str> =
                program.launches().map(|it| cuda.kernel(it.kernel).name.as_str()).collect();
            let found: Vec<&str> = rows.iter().map(|row| names[*row].as_str()).collect();
            assert_eq!(found, launches, "{name}, {sequences} sequences");
            assert!(rows.windows(2).all(|it| it[0] + 1 == it[1]), "{name}: {rows:?}");
        }
        let files = emit::emit(&plan, &[]);
        let text = |end: &str| {
            let file = files.iter().find(|file| file.path.ends_with(end));
            file.map(|file| file.text.as_str()).unwrap_or_default()
        };
        let stack = text("src/stack.rs");
        let timed = stack.matches(".timed(").count() + stack.matches(".timed_beside(").count();
        assert_eq!(timed, names.len(), "{name}");
        let untimed = [".launch(", ".beside(", ".fork()", ".join()"];
        assert!(untimed.iter().all(|it| !stack.contains(it)), "{name}: a launch has no row of times");
        assert!(text("src/main.rs").contains("mod profile;") && text("src/profile.rs").contains("Events"));
    }
}

#[test]
fn it_is_refused_where_there_are_other_phases_or_devices() {
    let draft =
        DraftOption { method: DraftMethod::Mtp, drafts: 1, vocabulary: None, forced_acceptance: None };
    let options = BuildOptions { profile: true, ..BuildOptions::default() };
    for (options, flag) in [
        (BuildOptions { draft: Some(draft), ..options }, "--draft"),
        (BuildOptions { ranks: Some(2), ..options }, "--tp"),
        (BuildOptions { ranks: Some(2), whole_experts: true, ..options }, "--ep"),
        (BuildOptions { vision: true, ..options }, "--vision on"),
    ] {
        let error = spec::load_with(&search(), "h200/qwen3.5-35b/nvfp4", &options);
        let error = error.map(|it| it.build()).expect_err("it is refused").to_string();
        let message = format!("`--profile` and `{flag}` were both given");
        assert!(error.contains(&message) && error.contains("build it without"), "{error}");
    }
    let target = spec::load_with(&search(), TARGETS[0], &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(target.build(), format!("{}+profile", TARGETS[0]));
}

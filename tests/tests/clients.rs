//! Official clients against the scripted model, which says whatever it is told to: tools, reasoning, Anthropic's API.

use monomorph_compiler::toolchain::python;
use monomorph_tests::root;
use monomorph_tests::server::Serving;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The scripted server: an example of `monomorph-server`, built beside this test.
fn scripted() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "--quiet", "-p", "monomorph-server", "--example", "scripted"]);
    assert!(cargo.status().expect("cargo runs").success(), "the scripted server does not build");
    let test = std::env::current_exe().expect("this test");
    let folder = test.ancestors().nth(2).expect("a target directory");
    folder.join("examples/scripted")
}

fn run(test: &str, url: &str) {
    let clients = root().join("tests/clients");
    let python = python::environment(&root().join("target/venv-clients"), &clients.join("requirements.txt"))
        .unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new(python);
    command.arg(clients.join(test)).arg(url);
    python::run(&mut command).unwrap_or_else(|error| panic!("{error}"));
}

fn talk(server: &Path, weights: &Path) -> Serving {
    let mut command = Command::new(server);
    command.args(["talk", "hermes", "think"]);
    Serving::start_command(command, weights, &[])
}

#[test]
fn the_official_clients_call_tools_and_think() {
    let server = scripted();
    let weights = tempfile::tempdir().expect("a temporary directory");
    let written = Command::new(&server).arg("talk-checkpoint").arg(weights.path()).status();
    assert!(written.expect("it runs").success());
    let serving = talk(&server, weights.path());
    run("openai_tools_test.py", &format!("http://{}/v1", serving.address));
    run("openai_responses_test.py", &format!("http://{}/v1", serving.address));
    run("anthropic_test.py", &format!("http://{}", serving.address));
}

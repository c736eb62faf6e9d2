//! Official clients against the scripted model, which answers whatever it is told to: tools, reasoning,
//! formats, Anthropic's API.

use monomorph_compiler::toolchain::python;
use monomorph_tests::npm::Npm;
use monomorph_tests::{root, scripted};
use std::process::Command;

fn run(test: &str, url: &str) {
    let clients = root().join("tests/clients");
    let python = python::environment(&root().join("target/venv-clients"), &clients.join("requirements.txt"))
        .unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new(python);
    command.arg(clients.join(test)).arg(url);
    python::run(&mut command).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_official_clients_call_tools_and_think() {
    let talking = scripted::talk(&[]);
    let address = &talking.serving.address;
    run("openai_tools_test.py", &format!("http://{address}/v1"));
    run("openai_responses_test.py", &format!("http://{address}/v1"));
    run("anthropic_test.py", &format!("http://{address}"));
}

#[test]
fn the_official_clients_send_pictures() {
    let seeing = scripted::sees(&[]);
    run("images_test.py", &format!("http://{}", seeing.serving.address));
}

/// Run by `cargo xtask test` if npm is installed. TypeScript checks the clients' sources in strict mode.
#[test]
#[ignore = "needs npm: xtask/clients/debian.sh"]
fn the_clients_from_npm_do_what_their_types_say() {
    let npm = Npm::install("npm");
    npm.check_types("npm");
    let talking = scripted::talk(&[]);
    let url = format!("http://{}/v1", talking.serving.address);
    npm.test("openai_test.ts", &[&url]);
    npm.test("ai_sdk_test.ts", &[&url]);
}

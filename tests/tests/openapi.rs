//! A server's OpenAPI document is valid, as openapi-spec-validator reads it, and true: schemathesis sends the
//! scripted model's server the requests that the document allows, and some that it forbids.
//!
//! Planted, and caught here: an undocumented status, an answer and a stream event that each lack a required
//! field, a route that requires no key, an invalid body that is accepted, a valid one that is refused, a
//! deleted response that still exists. Not caught: an integer whose bound is wider than the document's, and a
//! server error for an empty list, which the run did not generate.

use monomorph_compiler::toolchain::python;
use monomorph_tests::server::get_with;
use monomorph_tests::{root, scripted};
use std::process::Command;

const KEY: &str = "of-the-test";

#[test]
fn the_document_is_valid_and_true() {
    let own = root().join("tests/openapi");
    let python = python::environment(&root().join("target/venv-openapi"), &own.join("requirements.txt"))
        .unwrap_or_else(|error| panic!("{error}"));
    // An answer to a request without a limit fills the context. A short one keeps it within the ten seconds
    // that schemathesis allows, beside other tests too.
    let talking = scripted::talk(&["--api-key", KEY, "--max-body", "1000000", "--context", "1024"]);
    let address = &talking.serving.address;
    // Keeps the tools' files out of the source tree.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    for file in ["schemathesis.toml", "hooks.py"] {
        std::fs::copy(own.join(file), at(file)).expect("readable");
    }
    let (status, document) =
        get_with(address, "/openapi.json", &[("x-api-key", KEY)]).expect("the server answers");
    assert_eq!(status, 200, "{document}");
    std::fs::write(at("openapi.json"), document).expect("writable");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.current_dir(directory.path()).arg("-m").args(arguments);
        python::run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    };
    run(&["openapi_spec_validator", "openapi.json"]);
    let (url, key) = (format!("http://{address}/openapi.json"), format!("Authorization: Bearer {KEY}"));
    run(&[
        "schemathesis.cli",
        "run",
        &url,
        "-H",
        &key,
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--checks",
        "all",
    ]);
}

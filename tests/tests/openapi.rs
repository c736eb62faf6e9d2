//! The OpenAPI document of a server: valid, as openapi-spec-validator reads it, and true, as schemathesis
//! finds who asks the scripted model's server all that the document says may be asked, and what it says may
//! not.
//!
//! Planted, and caught here: a status that is not documented, an answer and an event of a stream that each
//! lack a required field, a route that wants no key, a body that is invalid and taken, one that is valid and
//! refused, a response that is deleted and still there. Not caught: one integer's bound that is wider than
//! the document's, and an error of the server's own for an empty list, which the run did not come by.

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
    let talking = scripted::talk(&["--api-key", KEY, "--max-body", "1000000"]);
    let address = &talking.serving.address;
    // What the tools write down stays out of the sources.
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

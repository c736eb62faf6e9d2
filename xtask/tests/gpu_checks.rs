//! What the scripts for machines with GPUs decide, on planted answers.

use std::path::Path;
use std::process::Command;

#[test]
fn answers_of_ranks_may_differ_as_far_as_rounding_goes() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg("-B").arg(here.join("tests/alike.py")).env("PYTHONPATH", here.join("src/gpu"));
    let output = python.output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! Downloads that the checks need, made while the first checks compile.

use crate::{TargetOptions, fetch, paths};
use monomorph_compiler::toolchain::{nvcc, python};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// Python environments of the tests, below the workspace's root, with their requirements.
const ENVIRONMENTS: [(&str, &str); 2] = [
    ("target/venv-clients", "tests/clients/requirements.txt"),
    ("target/venv-openapi", "tests/openapi/requirements.txt"),
];

/// Downloads in flight.
pub struct Downloads(JoinHandle<(Result<PathBuf, String>, Vec<String>)>);

/// Starts all of them, one after another.
pub fn begin() -> Downloads {
    Downloads(std::thread::spawn(|| {
        let target = TargetOptions { target: crate::DEFAULT_TARGET.to_owned(), targets_dir: None };
        let (weights, root, mut failures) = (fetch::weights(&target), paths::root(), Vec::new());
        failures.extend(weights.as_ref().err().cloned());
        failures.extend(nvcc::Compiler::find(&root).err().map(|why| why.to_string()));
        let environments = ENVIRONMENTS.iter().map(|(directory, requirements)| {
            python::environment(&root.join(directory), &root.join(requirements))
        });
        failures.extend(environments.filter_map(Result::err));
        (weights, failures)
    }))
}

impl Downloads {
    /// Waits for them: the path of the weights, if available, and what could not be downloaded.
    pub fn end(self) -> (Option<PathBuf>, Result<(), String>) {
        let (weights, failures) = self.0.join().expect("downloads do not panic");
        (weights.ok(), if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) })
    }
}

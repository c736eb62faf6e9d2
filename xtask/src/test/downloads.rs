//! What the checks need from elsewhere, fetched while the first of them compile.

use crate::{TargetOptions, fetch, paths};
use monomorph_compiler::toolchain::{nvcc, python};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// Environments of Python that tests run, below the workspace's root, and the requirements that they hold.
const ENVIRONMENTS: [(&str, &str); 2] = [
    ("target/venv-clients", "tests/clients/requirements.txt"),
    ("target/venv-openapi", "tests/openapi/requirements.txt"),
];

/// Downloads under way.
pub struct Downloads(JoinHandle<(Result<PathBuf, String>, Vec<String>)>);

/// Begins all of them, one after another.
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
    /// Waits for their end: where the weights are, if they could be had, and what could not.
    pub fn end(self) -> (Option<PathBuf>, Result<(), String>) {
        let (weights, failures) = self.0.join().expect("downloads do not panic");
        (weights.ok(), if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) })
    }
}

//! Builds servers and runs their verbs.

use crate::root;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds a target and returns its server.
///
/// # Panics
/// If the build fails.
pub fn build(targets: Option<&Path>, target: &str) -> PathBuf {
    let search: Vec<PathBuf> = targets.map(Path::to_owned).into_iter().chain([root().join("targets")]).collect();
    monomorph_compiler::toolchain::build(&root(), &search, target).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a verb to its end and returns its standard output.
///
/// # Panics
/// If it fails.
pub fn verb(server: &Path, arguments: &[&str]) -> String {
    let output = Command::new(server).args(arguments).stdin(Stdio::null()).output().expect("the server starts");
    assert!(
        output.status.success(),
        "{} {arguments:?}: {}\n{}",
        server.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

//! Helpers of the end-to-end tests: paths, building and running a server, comparing numbers.

pub mod converted;
pub mod crowd;
pub mod dispatch;
pub mod drafters;
pub mod emulated;
pub mod feedings;
pub mod gguf_files;
pub mod goldens;
pub mod greedy;
pub mod joins;
pub mod logits;
pub mod makers;
pub mod npm;
pub mod repeating;
pub mod requantise;
pub mod rounding;
pub mod scaled;
pub mod scripted;
pub mod served;
pub mod server;
pub mod shipped;
pub mod speculated;
pub mod stacks;
pub mod towers;

use monomorph_compiler::toolchain;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests stand in the workspace").to_owned()
}

/// Builds a program of the workspace beside the calling test and returns its path below the target directory.
///
/// It is selected from the whole workspace with the features of `cargo xtask test`. Cargo unites the features
/// of the packages it builds, so a single package would recompile itself and half of its dependencies with
/// other features.
///
/// # Panics
/// When it does not build.
pub fn program(chosen: &[&str], below: &str) -> PathBuf {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(root()).args(["build", "--quiet", "--workspace", "--features=monomorph-device/cuda"]);
    assert!(cargo.args(chosen).status().expect("cargo runs").success(), "{below} does not build");
    let test = std::env::current_exe().expect("this test");
    test.ancestors().nth(2).expect("a target directory").join(below)
}

/// Committed test data.
pub fn fixtures() -> PathBuf {
    root().join("tests/fixtures")
}

/// The SmolLM2 GGUF that `cargo xtask test` fetched. A test that needs it begins with
/// `#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]`, so that it counts as
/// ignored without them.
///
/// # Panics
/// When `MONOMORPH_TEST_WEIGHTS` does not name it.
pub fn smollm2() -> PathBuf {
    let path = std::env::var_os("MONOMORPH_TEST_WEIGHTS").filter(|path| !path.is_empty());
    let path = PathBuf::from(
        path.expect("MONOMORPH_TEST_WEIGHTS names SmolLM2's GGUF; `cargo xtask test` fetches it and sets it"),
    );
    assert!(path.is_file(), "MONOMORPH_TEST_WEIGHTS: there is no file {}", path.display());
    path
}

/// Compares `text` with the committed golden at `path`; `cargo xtask test --bless` rewrites it instead.
///
/// # Panics
/// When they differ.
pub fn check_golden(path: &Path, text: &str) {
    if std::env::var_os("MONOMORPH_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a file stands in a directory"))
            .expect("fixtures are writable");
        std::fs::write(path, text).expect("fixtures are writable");
        return;
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    let differing = golden.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = differing.unwrap_or(golden.lines().count().min(text.lines().count()));
    assert!(
        golden == text,
        "{} differs from line {} on:\n  golden: {}\n  now:    {}\n`cargo xtask test --bless` accepts the change",
        path.display(),
        line + 1,
        golden.lines().nth(line).unwrap_or("(end)"),
        text.lines().nth(line).unwrap_or("(end)"),
    );
}

//! What the end-to-end tests share: where things are, how a server is built and run, how numbers compare.

pub mod crowd;
pub mod dispatch;
pub mod emulated;
pub mod goldens;
pub mod joins;
pub mod logits;
pub mod npm;
pub mod repeating;
pub mod requantise;
pub mod rounding;
pub mod scripted;
pub mod server;

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests stand in the workspace").to_owned()
}

/// Committed test data.
pub fn fixtures() -> PathBuf {
    root().join("tests/fixtures")
}

/// The SmolLM2 GGUF that `cargo xtask test` fetched; `None` when tests run without it.
pub fn smollm2() -> Option<PathBuf> {
    let path = std::env::var_os("MONOMORPH_TEST_WEIGHTS").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: no SmolLM2 weights; `cargo xtask test` fetches them");
    }
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

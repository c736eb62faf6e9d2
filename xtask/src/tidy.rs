//! `cargo xtask tidy`: conventions that neither rustfmt nor clippy holds.

mod commands;
mod docs;
mod files;
mod printed;
mod words;

use crate::paths;
use std::path::Path;

/// Every breach, a line each.
pub fn tidy() -> Result<(), String> {
    let breaches = breaches(&paths::root());
    if breaches.is_empty() { Ok(()) } else { Err(breaches.join("\n")) }
}

fn breaches(root: &Path) -> Vec<String> {
    [
        files::breaches(root),
        docs::breaches(root),
        commands::breaches(root),
        printed::breaches(root),
        words::breaches(root),
    ]
    .concat()
}

/// A file's text; what cannot be read is a breach of its own.
fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes files below a directory, for tests: by path, with their texts.
#[cfg(test)]
fn planted(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directories can be made");
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it stands in a directory")).expect("writable");
        std::fs::write(path, text).expect("writable");
    }
    root
}

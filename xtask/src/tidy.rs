//! `cargo xtask tidy`: conventions that neither rustfmt nor clippy checks.

mod circles;
mod commands;
mod docs;
mod files;
mod printed;
mod source;
mod words;

use crate::paths;
use std::path::Path;

/// Fails if any convention is broken, with one breach per line.
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
        circles::breaches(root),
    ]
    .concat()
}

/// A file's text; an unreadable file is a breach too.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes files below a temporary directory, given by path and text, for tests.
#[cfg(test)]
pub(crate) fn planted(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directories can be made");
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it stands in a directory")).expect("writable");
        std::fs::write(path, text).expect("writable");
    }
    root
}

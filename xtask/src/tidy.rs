//! `cargo xtask tidy`: conventions that neither rustfmt nor clippy checks.
//!
//! * `files`: width of comments (Rust, Python, shell) and length of all sources.
//! * `items`: doc comments of Rust that say nothing.
//! * `words`: dropped words in comments (Rust, C++, JavaScript, Python, shell), in strings of Rust and in
//!   pages; subjects of commits.
//! * `docs`: the index of the book, links and their anchors.
//! * `commands`: commands of the book stand in blocks that can be run, and name verbs, flags, groups of
//!   checks and tests that exist.
//! * `printed`: files that are printed from declarations.
//!
//! Comments of CUDA sources are not checked for width or words.

mod circles;
mod commands;
mod docs;
mod files;
mod items;
mod printed;
mod source;
mod words;

use crate::paths::{self, read};
pub(crate) use files::walk;
use std::path::Path;

/// Fails if any convention is broken, with one breach per line. With `bless` printed files are not compared,
/// because the tests rewrite them.
pub fn tidy(bless: bool) -> Result<(), String> {
    let breaches = breaches(&paths::root(), bless);
    if breaches.is_empty() { Ok(()) } else { Err(breaches.join("\n")) }
}

fn breaches(root: &Path, bless: bool) -> Vec<String> {
    [
        files::breaches(root),
        items::breaches(root),
        docs::breaches(root),
        commands::breaches(root),
        if bless { Vec::new() } else { printed::breaches(root) },
        words::breaches(root),
        circles::breaches(root),
    ]
    .concat()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blessing_skips_printed_files_only() {
        let root =
            planted(&[("rustfmt.toml", "max_width = 110\n"), ("runtime/a.rs", "/// Why.\nreason: u8,\n")]);
        let [all, blessed] = [false, true].map(|bless| breaches(root.path(), bless));
        assert!(blessed.iter().any(|breach| breach.starts_with("runtime/a.rs:1: ")), "{blessed:?}");
        let printed = printed::breaches(root.path());
        assert!(!printed.is_empty());
        assert_eq!(all.into_iter().filter(|breach| !printed.contains(breach)).collect::<Vec<_>>(), blessed);
    }
}

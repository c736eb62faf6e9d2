//! Sources that people write: the width of their comments, and their length.

use std::path::{Path, PathBuf};

/// `max_width` of rustfmt.toml, which rustfmt applies to code but not to comments.
const MAX_WIDTH: usize = 110;
/// A larger file is split.
const MAX_BYTES: u64 = 30_000;
/// Directories with sources.
pub(super) const ROOTS: [&str; 5] = ["compiler", "runtime", "templates", "tests", "xtask"];
/// Directories below them without sources of ours: test data, and what tests install.
const SKIPPED: [&str; 4] = ["fixtures", "node_modules", "__pycache__", ".venv"];

/// File endings of sources, and what begins a comment whose width is checked. C++, CUDA and JavaScript are
/// not: their comments have tables and longer lines.
const SOURCES: [(&str, Option<&str>); 7] = [
    ("rs", Some("//")),
    ("py", Some("#")),
    ("sh", Some("#")),
    ("cuh", None),
    ("cu", None),
    ("cpp", None),
    ("js", None),
];

pub fn breaches(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    match super::read(&root.join("rustfmt.toml")) {
        Ok(format) if format.contains(&format!("max_width = {MAX_WIDTH}\n")) => {}
        Ok(_) => found.push(format!("rustfmt.toml: max_width is not {MAX_WIDTH}, as that of comments")),
        Err(why) => found.push(why),
    }
    for directory in ROOTS {
        walk(&root.join(directory), &mut |path| check(root, path, &mut found));
    }
    found
}

/// Calls `each` for every file below a directory, ascending, except in skipped directories.
pub(crate) fn walk(directory: &Path, each: &mut impl FnMut(&Path)) {
    // A missing directory is empty.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&path, each);
        } else if path.is_file() {
            each(&path);
        }
    }
}

fn check(root: &Path, path: &Path, found: &mut Vec<String>) {
    let ending = path.extension().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((_, mark)) = SOURCES.iter().find(|(known, _)| *known == ending) else { return };
    let name = path.strip_prefix(root).unwrap_or(path).display();
    let text = match super::read(path) {
        Ok(text) => text,
        Err(why) => return found.push(why),
    };
    for (at, line) in text.lines().enumerate() {
        if mark.is_some_and(|mark| line.trim_start().starts_with(mark)) && line.chars().count() > MAX_WIDTH {
            found.push(format!("{name}:{}: a comment is wider than {MAX_WIDTH} columns", at + 1));
        }
    }
    if text.len() as u64 > MAX_BYTES {
        found.push(format!("{name}: {} bytes; a file of more than {MAX_BYTES} is two files", text.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn wide_comments_and_large_files_are_named() {
        let (wide, large) = ("w".repeat(MAX_WIDTH), "fn f() {}\n".repeat(3001));
        let root = planted(&[
            ("rustfmt.toml", "max_width = 110\n"),
            ("runtime/a/src/lib.rs", &format!("fn f() {{}}\n    // {wide}\n// short\n")),
            ("templates/b.cuh", &format!("// {wide}\n")),
            ("tests/c.py", &format!("# {wide}\n")),
            ("tests/fixtures/d.rs", &format!("// {wide}\n")),
            ("xtask/src/e.rs", &large),
        ]);
        let found = breaches(root.path());
        let begins = ["runtime/a/src/lib.rs:2: ", "tests/c.py:1: ", "xtask/src/e.rs: 30010"];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        assert!(found.iter().zip(begins).all(|(found, begin)| found.starts_with(begin)), "{found:?}");
        std::fs::write(root.path().join("rustfmt.toml"), "max_width = 100\n").expect("writable");
        assert!(breaches(root.path())[0].starts_with("rustfmt.toml: "));
    }
}

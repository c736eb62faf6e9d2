//! The pages of the book and the README files beside it, and the commands on them.

mod commands;

pub use commands::{Block, Command, Marker, Mistake, commands};

use crate::paths;
use std::path::{Path, PathBuf};

/// Pages outside of `docs`.
const READMES: [&str; 3] = ["README.md", "generated/README.md", "tests/reference/README.md"];

/// A page's path, its name below the root, and its text or the error of reading it.
pub type Page = (PathBuf, String, Result<String, String>);

/// The README files, and every page and decision of the book.
pub fn all(root: &Path) -> impl Iterator<Item = Page> {
    let docs = root.join("docs");
    // Links to a README that is missing are dead, which is reported anyway.
    let there = READMES.map(|name| root.join(name)).into_iter().filter(|path| path.exists()).collect();
    let all: Vec<PathBuf> = [there, of(&docs), of(&docs.join("adr"))].concat();
    all.into_iter().map(move |page| {
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        let text = paths::read(&page);
        (page, name, text)
    })
}

/// The pages of a directory, ascending.
pub fn of(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    pages.retain(|path| path.extension().is_some_and(|it| it == "md"));
    pages.sort();
    pages
}

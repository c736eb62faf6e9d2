//! The licences of all crates that a server is made of.

use crate::licences::{cargo, metadata};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Beginnings of the names of files with licences.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Every licence's text once, under the crates that have it; at the end those that ship none, by their
/// licences' names. `directory` is the crate's, and `triple` the host that it is linked for.
pub fn of(directory: &Path, triple: &str) -> Result<String, String> {
    let (mut texts, mut bare) = (BTreeMap::<String, BTreeSet<String>>::new(), BTreeSet::new());
    for it in linked(&metadata(directory, &[])?, directory, triple)? {
        let field = |name: &str| it[name].as_str().unwrap_or_default();
        let (name, version) = (field("name"), field("version"));
        // The project's own are under its licences.
        if it["source"].is_null() {
            continue;
        }
        let crate_directory =
            Path::new(field("manifest_path")).parent().expect("a manifest is in a directory");
        let found = licences(crate_directory)?;
        if found.is_empty() {
            bare.insert(format!("{name} {version}: {}", field("license")));
        }
        for text in found {
            texts.entry(text).or_default().insert(format!("{name} {version}"));
        }
    }
    let mut out = String::from("Licences of the Rust crates in this program.\n");
    for (text, crates) in &texts {
        let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
        // Writing to a string cannot fail.
        let _ = write!(out, "\n{}\n{}\n\n{}\n", "=".repeat(100), crates.join(", "), text.trim_end());
    }
    if !bare.is_empty() {
        let _ = write!(out, "\n{}\nThese ship no text of their licence:\n", "=".repeat(100));
        for line in &bare {
            let _ = writeln!(out, "{line}");
        }
    }
    Ok(out)
}

/// The packages of `cargo metadata` that are linked into a crate, itself among them.
pub fn linked<'a>(metadata: &'a Value, directory: &Path, triple: &str) -> Result<Vec<&'a Value>, String> {
    let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--target", triple];
    let tree = cargo(directory, &tree)?;
    let linked: BTreeSet<(&str, &str)> = tree.lines().filter_map(package).collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let is = |it: &&Value| {
        let field = |name: &str| it[name].as_str().unwrap_or_default();
        linked.contains(&(field("name"), field("version")))
    };
    Ok(packages.iter().filter(is).collect())
}

/// Name and version of a line of `cargo tree`.
fn package(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// The texts of the licences in a crate's directory.
fn licences(directory: &Path) -> Result<Vec<String>, String> {
    let io = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && FILES.iter().any(|begins| name.starts_with(begins)) {
            let bytes = std::fs::read(&path).map_err(io)?;
            texts.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_packages_whatever_stands_behind() {
        assert_eq!(package("serde v1.0.2 (*)"), Some(("serde", "1.0.2")));
        assert_eq!(package("monomorph-device v0.1.0 (/a/b)"), Some(("monomorph-device", "0.1.0")));
        assert_eq!(package(""), None);
    }
}

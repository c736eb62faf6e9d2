//! Checks that every dependency's licence allows distributing the binary.

use crate::paths;
use monomorph_compiler::toolchain;
use serde_json::Value;
use std::path::Path;

/// Licences that a dependency may offer; one of several alternatives is enough.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// Checks every package that cargo would build, the project's own included.
pub fn check() -> Result<(), String> {
    let metadata = metadata(&paths::root(), &["--locked"])?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(allowed))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    if refused.is_empty() { Ok(()) } else { Err(format!("licences not allowed:\n{}", refused.join("\n"))) }
}

/// What `cargo metadata` says in a directory, with further options.
pub fn metadata(directory: &Path, options: &[&str]) -> Result<Value, String> {
    let text = cargo(directory, &[&["metadata", "--format-version", "1"], options].concat())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// What cargo prints in a directory.
pub fn cargo(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = toolchain::cargo()
        .current_dir(directory)
        .args(arguments)
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether allowed licences satisfy an SPDX expression, including old ones with `/` for `OR`.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `all OR all …`
fn any(words: &mut Words) -> bool {
    let mut met = all(words);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words);
    }
    met
}

/// `one AND one …`
fn all(words: &mut Words) -> bool {
    let mut met = one(words);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words);
    }
    met
}

/// `( any )`, or a licence with its exception.
fn one(words: &mut Words) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any(words);
        return words.next_if_eq(&")").is_some() && met;
    }
    let Some(licence) = words.next() else { return false };
    let name = match words.next_if_eq(&"WITH") {
        Some(with) => format!("{licence} {with} {}", words.next().unwrap_or_default()),
        None => licence.to_owned(),
    };
    ALLOWED.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn one_allowed_alternative_is_enough_and_every_conjunct_is_needed() {
        assert!(allowed("MIT OR GPL-3.0"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("MIT AND BSD-3-Clause"));
        assert!(!allowed("MIT AND GPL-3.0"));
        assert!(allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(!allowed("(MIT AND GPL-3.0) OR GPL-2.0"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
        assert!(!allowed("GPL-3.0-only"));
        assert!(!allowed(""));
    }
}

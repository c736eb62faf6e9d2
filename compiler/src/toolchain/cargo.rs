//! How cargo is run: told nothing of the package that this program belongs to, and with a rustc of one's own.

use super::{BuildError, digest, fresh, write_if_changed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What cargo tells programs that it runs, by the beginnings of the variables' names.
const TOLD: [&str; 6] =
    ["CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"];

/// `cargo`, still without arguments.
///
/// Programs that cargo runs (tests, `cargo xtask`) would hand on the variables about their own package. There
/// are build scripts that run again when one of these has changed (that of ring does), and everything behind
/// them is compiled again: most of this workspace, for every test that builds a program of it.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_told)) {
        command.env_remove(name);
    }
    command
}

fn is_told(name: &str) -> bool {
    TOLD.iter().any(|beginning| name.starts_with(beginning))
}

/// A program in `directory` that runs rustc with further flags, to be a `RUSTC_WORKSPACE_WRAPPER`, which
/// cargo uses for crates of the workspace only. Its name has the digest of the flags: cargo compiles again
/// what another wrapper has compiled, and does not look into it.
///
/// # Errors
/// When it cannot be written.
pub fn rustc_with(directory: &Path, flags: &[String]) -> Result<PathBuf, BuildError> {
    let name = digest(flags.iter().map(|flag| flag.as_bytes()));
    let path = directory.join(format!("rustc-{}", &name[..16]));
    if path.is_file() {
        return Ok(path);
    }
    let quoted: String = flags.iter().map(|flag| format!(" '{}'", flag.replace('\'', r"'\''"))).collect();
    let own = fresh(&path);
    let io = |error| BuildError::Io(own.clone(), error);
    write_if_changed(&own, format!("#!/bin/sh\nexec \"$@\"{quoted}\n").as_bytes())?;
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).map_err(io)?;
    std::fs::rename(&own, &path).map_err(io)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::{cargo, is_told, rustc_with};
    use std::ffi::OsStr;
    use std::process::Command;

    #[test]
    fn cargo_is_not_told_of_this_package() {
        let command = cargo();
        let removed =
            |name: &str| command.get_envs().any(|(it, value)| it == OsStr::new(name) && value.is_none());
        // Cargo sets the first for tests; the second is where dependencies are. Tests of a package with a
        // build script are told its directory too.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && removed("CARGO_MANIFEST_DIR"));
        assert!(!removed("CARGO_HOME"));
        assert!(["OUT_DIR", "CARGO_PKG_NAME"].iter().all(|it| is_told(it)) && !is_told("CARGO_TARGET_DIR"));
    }

    #[test]
    fn a_wrapper_of_rustc_hands_on_what_it_is_given_and_its_flags() {
        let directory = tempfile::tempdir().unwrap();
        let flags = ["-C", "it's=$HOME one"].map(str::to_owned);
        let path = rustc_with(directory.path(), &flags).unwrap();
        assert_eq!(rustc_with(directory.path(), &flags).unwrap(), path);
        assert_ne!(rustc_with(directory.path(), &flags[..1]).unwrap(), path);
        let said = Command::new(path).args(["printf", "%s|", "a b"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "a b|-C|it's=$HOME one|");
    }
}

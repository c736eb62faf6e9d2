//! Servers of the project's tests, which take what these have compiled: most of a server is crates of others,
//! and cargo compiles them again for every other profile, set of flags, or set of features.

use super::{BuildError, linked, rustc_with, tables, write_if_changed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the project's workspace consists of.
const MEMBERS: [&str; 4] = ["compiler", "runtime/*", "tests", "xtask"];

/// Where cargo puts what tests are made of.
pub(super) fn target(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()))
}

/// Adds the arguments by which cargo builds the crate `package`, which stands in `directory` as
/// [`super::workspace`] writes it, with the profile of the tests and the features that their build unites.
/// Only crates of the project are compiled with `flags`: they alone differ from those of the tests.
pub(super) fn select(
    cargo: &mut Command,
    root: &Path,
    directory: &Path,
    package: &str,
    flags: &[String],
) -> Result<(), BuildError> {
    let read = |path: PathBuf| std::fs::read_to_string(&path).map_err(|error| BuildError::Io(path, error));
    for member in MEMBERS {
        linked(root, directory, member.trim_end_matches("/*"))?;
    }
    let manifest = directory.join("Cargo.toml");
    let own = read(manifest.clone())?;
    // Features are united over all members, whatever is built of them.
    let members = format!("[workspace]\nresolver = \"3\"\nmembers = {MEMBERS:?}\n");
    if !own.contains(&members) {
        let text = own.replacen("[workspace]\n", &members, 1);
        let profile = tables(&read(root.join("Cargo.toml"))?, "[profile.dev");
        write_if_changed(&manifest, format!("{text}\n{profile}").as_bytes())?;
    }
    // One of the crate alone has lost what only the other members need.
    write_if_changed(&directory.join("Cargo.lock"), read(root.join("Cargo.lock"))?.as_bytes())?;
    let wrapper = rustc_with(&target(root).join("servers"), flags)?;
    cargo.args(["build", "--workspace", "--features=monomorph-device/cuda"]);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    for binary in binaries(directory, package)? {
        cargo.args(["--bin", &binary]);
    }
    Ok(())
}

/// The binaries of a crate: those in `src/bin`, or the one of its name.
fn binaries(directory: &Path, package: &str) -> Result<Vec<String>, BuildError> {
    let path = directory.join("src/bin");
    if !path.is_dir() {
        return Ok(vec![package.to_owned()]);
    }
    let io = |error| BuildError::Io(path.clone(), error);
    let entries = std::fs::read_dir(&path).map_err(io)?;
    entries.map(|entry| Ok(entry.map_err(io)?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_gets_the_projects_members_profile_and_lock_file_once() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let project = "[workspace]\nmembers = [\"all\"]\n[profile.dev]\nopt-level = 1\n[profile.release]\nlto = false\n\
                       [profile.dev.package.half]\nopt-level = 2\n";
        for (file, text) in
            [("Cargo.toml", project), ("Cargo.lock", "pinned"), ("g/own/Cargo.lock", "pruned")]
        {
            write_if_changed(&at(file), text.as_bytes()).unwrap();
        }
        let own = "[package]\nname = \"own\"\n\n[workspace]\n\n[workspace.package]\nedition = \"2024\"\n";
        write_if_changed(&at("g/own/Cargo.toml"), own.as_bytes()).unwrap();
        let selected = || {
            let mut cargo = Command::new("cargo");
            select(&mut cargo, root.path(), &at("g/own"), "own", &["-Cx".to_owned()]).unwrap();
            let arguments: Vec<_> = cargo.get_args().map(|it| it.to_string_lossy().into_owned()).collect();
            (std::fs::read_to_string(at("g/own/Cargo.toml")).unwrap(), arguments)
        };
        let (manifest, arguments) = selected();
        assert!(manifest.starts_with("[package]\nname = \"own\"\n\n[workspace]\nresolver"), "{manifest}");
        assert!(
            manifest.ends_with("[profile.dev]\nopt-level = 1\n[profile.dev.package.half]\nopt-level = 2\n")
        );
        assert!(!manifest.contains("release"), "{manifest}");
        assert_eq!(arguments[3..], ["--bin", "own"], "{arguments:?}");
        assert_eq!(selected(), (manifest, arguments));
        assert_eq!(std::fs::read_to_string(at("g/own/Cargo.lock")).unwrap(), "pinned");
        assert_eq!(std::fs::read_link(at("g/own/tests")).unwrap(), Path::new("../../tests"));
    }
}

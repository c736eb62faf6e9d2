//! Servers of the project's tests, which take what these have compiled: most of a server is crates of others,
//! and cargo compiles them again for every other profile, set of flags, or set of features.

use super::{BuildError, digest, fresh, linked, tables, write_if_changed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the project's workspace consists of.
const MEMBERS: [&str; 4] = ["compiler", "runtime", "tests", "xtask"];

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
        linked(root, directory, member)?;
    }
    let manifest = directory.join("Cargo.toml");
    let own = read(manifest.clone())?;
    // Features are united over all members, whatever is built of them.
    let members =
        "[workspace]\nresolver = \"3\"\nmembers = [\"compiler\", \"runtime/*\", \"tests\", \"xtask\"]\n";
    if !own.contains(members) {
        let text = own.replacen("[workspace]\n", members, 1);
        let profile = tables(&read(root.join("Cargo.toml"))?, "[profile.dev");
        write_if_changed(&manifest, format!("{text}\n{profile}").as_bytes())?;
    }
    // One of the crate alone has lost what only the other members need.
    write_if_changed(&directory.join("Cargo.lock"), read(root.join("Cargo.lock"))?.as_bytes())?;
    let wrapper = wrapper(&target(root).join("servers"), flags)?;
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

/// A program that runs rustc with further flags. Its name has their digest: cargo compiles again what another
/// wrapper has compiled, and does not look into it.
fn wrapper(directory: &Path, flags: &[String]) -> Result<PathBuf, BuildError> {
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

    #[test]
    fn a_wrapper_hands_on_what_it_is_given_and_its_flags() {
        let directory = tempfile::tempdir().unwrap();
        let flags = ["-C", "it's=$HOME one"].map(str::to_owned);
        let path = wrapper(directory.path(), &flags).unwrap();
        assert_eq!(wrapper(directory.path(), &flags).unwrap(), path);
        assert_ne!(wrapper(directory.path(), &flags[..1]).unwrap(), path);
        let said = Command::new(path).args(["printf", "%s|", "a b"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "a b|-C|it's=$HOME one|");
    }
}

//! Whether the disk holds what the checks build.

use crate::paths;
use std::path::Path;

/// Bytes that `target` has after all checks in a fresh clone, and a tenth more.
pub const NEEDED: u64 = 11 << 30;

/// Checks that there is room for what `target` does not hold yet. A disk that fills up fails some check after
/// half an hour, and what it says then is seldom the reason.
///
/// # Errors
/// When there is too little: says how much is free, where, and how much is needed.
pub fn check() -> Result<(), String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths::root().join("target"), Into::into);
    let found = rustix::fs::statvfs(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    enough(&target, held(&target), found.f_bavail * found.f_frsize)
}

fn enough(target: &Path, held: u64, free: u64) -> Result<(), String> {
    let needed = NEEDED.saturating_sub(held);
    if free >= needed {
        return Ok(());
    }
    let size = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    Err(format!(
        "the checks need {} more in {}, whose disk has {} free: make room, or let CARGO_TARGET_DIR name another disk",
        size(needed),
        target.display(),
        size(free)
    ))
}

/// Bytes of all files below a folder, as far as they can be read.
fn held(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => held(&entry.path()),
        Ok(about) if about.is_file() => about.len(),
        _ => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::{NEEDED, enough, held};
    use std::path::Path;

    #[test]
    fn what_is_there_already_is_not_needed_again() {
        let target = Path::new("/builds/target");
        assert_eq!(enough(target, 0, NEEDED), Ok(()));
        assert_eq!(enough(target, NEEDED - 5, 5), Ok(()));
        assert_eq!(enough(target, NEEDED + 5, 0), Ok(()));
        let said = enough(target, NEEDED - (4 << 30), (3 << 30) + (1 << 29)).expect_err("too little");
        assert!(
            said.starts_with("the checks need 4.0 GiB more in /builds/target, whose disk has 3.5 GiB free"),
            "{said}"
        );
    }

    #[test]
    fn files_of_all_folders_below_are_counted() {
        let folder = tempfile::tempdir().expect("temporary directories can be made");
        std::fs::create_dir_all(folder.path().join("a/b")).expect("it is writable");
        std::fs::write(folder.path().join("a/one"), [0; 100]).expect("it is writable");
        std::fs::write(folder.path().join("a/b/two"), [0; 11]).expect("it is writable");
        assert_eq!(held(folder.path()), 111);
        assert_eq!(held(&folder.path().join("missing")), 0);
    }
}

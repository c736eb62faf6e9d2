//! Where things are: the workspace, the targets.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace").to_owned()
}

/// The project's own targets.
pub fn targets() -> PathBuf {
    root().join("targets")
}

/// A target as a part of file names.
pub fn slug(target: &str) -> String {
    target.replace('/', "-")
}

/// The directories in which targets are looked up: the given one, then the project's own.
pub fn search(given: Option<&Path>) -> Vec<PathBuf> {
    given.map(Path::to_owned).into_iter().chain([targets()]).collect()
}

/// A file's text.
///
/// # Errors
/// Names the file.
pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

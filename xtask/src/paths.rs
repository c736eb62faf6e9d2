//! Where things are: the workspace, the targets, the cache of weights.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace").to_owned()
}

/// The project's own targets.
pub fn targets() -> PathBuf {
    root().join("targets")
}

/// Where weights are kept: `$XDG_CACHE_HOME/monomorph`, or `~/.cache/monomorph`.
pub fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("monomorph")
}

/// The directories targets are looked up in: the one given, then the project's own.
pub fn search(given: Option<&Path>) -> Vec<PathBuf> {
    given.map(Path::to_owned).into_iter().chain([targets()]).collect()
}

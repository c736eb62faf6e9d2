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

/// The file of this program, or the one that has taken its place: cargo puts a new file there when it builds
/// this program anew, as tests have it do while `xtask test` runs.
///
/// # Errors
/// When the system does not say.
pub fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe().map(in_place)
}

/// Where a file is, of which Linux may say behind its name that it is gone.
fn in_place(path: PathBuf) -> PathBuf {
    let gone = path.to_str().and_then(|it| it.strip_suffix(" (deleted)")).map(PathBuf::from);
    gone.filter(|there| !path.exists() && there.exists()).unwrap_or(path)
}

/// A file's text.
///
/// # Errors
/// Names the file.
pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::in_place;

    #[test]
    fn a_program_that_was_built_anew_is_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let [there, gone] = ["xtask", "xtask (deleted)"].map(|name| directory.path().join(name));
        assert_eq!(in_place(gone.clone()), gone, "nothing has taken its place");
        std::fs::write(&there, "").unwrap();
        assert_eq!(in_place(there.clone()), there);
        assert_eq!(in_place(gone.clone()), there);
        std::fs::write(&gone, "").unwrap();
        assert_eq!(in_place(gone.clone()), gone, "a name may end so");
    }
}

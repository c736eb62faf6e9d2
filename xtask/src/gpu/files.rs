//! Files put into the store, with the directories above them.

use std::path::Path;

pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let bytes = std::fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    write(to, &bytes)
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let problem = |error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(path.parent().expect("a file stands in a directory")).map_err(problem)?;
    std::fs::write(path, bytes).map_err(problem)
}

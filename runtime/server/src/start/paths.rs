//! Where weights are looked for.

use monomorph_model::ModelSpec;
use monomorph_weights::only_gguf;
pub use monomorph_weights::weights_directory;
use std::path::{Path, PathBuf};

/// Where `fetch` puts a target's weights, and a server looks for them that is told nothing:
/// [`weights_directory`].
pub fn default_weights(spec: &ModelSpec) -> PathBuf {
    let quant = spec.target.rsplit('/').next().unwrap_or(spec.target);
    weights_directory(spec.model, quant)
}

/// Where the verb `pack` puts what it makes of these weights: beside them, named after model and
/// quantisation.
pub(crate) fn packed_path(spec: &ModelSpec, weights: &Path) -> PathBuf {
    let quant = spec.target.rsplit('/').next().unwrap_or(spec.target);
    let name = format!("{}-{quant}.packed", spec.model);
    if weights.is_dir() { weights.join(name) } else { weights.with_file_name(name) }
}

/// Turns what a person gave (or the default) into what `Checkpoint::open` takes: a file, or a directory
/// that holds safetensors. A directory with exactly one GGUF file, or the parts of one, stands for that file.
///
/// # Errors
/// When nothing is there, or a directory holds several GGUF files or neither kind.
pub fn resolve_weights(path: &Path) -> Result<PathBuf, String> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        format!(
            "no weights at {}: {error}; name a GGUF file or a checkpoint directory with --weights PATH",
            path.display()
        )
    })?;
    if !metadata.is_dir() {
        return Ok(path.to_owned());
    }
    let entries = std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut ggufs = Vec::new();
    let mut safetensors = false;
    for entry in entries {
        let entry = entry.map_err(|error| format!("{}: {error}", path.display()))?.path();
        match entry.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => ggufs.push(entry),
            Some("safetensors") => safetensors = true,
            _ => {}
        }
    }
    if let (Some(file), false) = (only_gguf(&ggufs), safetensors) {
        return Ok(file.clone());
    }
    match (ggufs.len(), safetensors) {
        (0, true) => Ok(path.to_owned()),
        (0, false) => Err(format!("{} holds neither a .gguf nor a .safetensors file", path.display())),
        _ => Err(format!("{} holds several checkpoints; name one file with --weights", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_only_gguf() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let empty = resolve_weights(directory.path()).expect_err("nothing there");
        assert!(empty.contains("neither"), "{empty}");
        let gguf = directory.path().join("a.gguf");
        std::fs::write(&gguf, b"").expect("written");
        assert_eq!(resolve_weights(directory.path()), Ok(gguf.clone()));
        assert_eq!(resolve_weights(&gguf), Ok(gguf));
        std::fs::write(directory.path().join("b.gguf"), b"").expect("written");
        assert!(resolve_weights(directory.path()).expect_err("two").contains("several"));
        let parts = tempfile::tempdir().expect("a temporary directory");
        let [first, second] =
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| parts.path().join(name));
        std::fs::write(&second, b"").expect("written");
        std::fs::write(&first, b"").expect("written");
        assert_eq!(resolve_weights(parts.path()), Ok(first));
        let missing = resolve_weights(&directory.path().join("c")).expect_err("missing");
        assert!(missing.contains("--weights"), "{missing}");
    }

    #[test]
    fn safetensors_are_taken_as_a_directory() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("model.safetensors"), b"").expect("written");
        assert_eq!(resolve_weights(directory.path()), Ok(directory.path().to_owned()));
    }
}

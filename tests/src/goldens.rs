//! Tiny random checkpoints with logits computed by transformers (tests/reference/make_goldens.py).

use crate::fixtures;
use monomorph_compiler::import;
use monomorph_compiler::spec::types::Compute;
use std::path::{Path, PathBuf};

/// A config with checkpoints `f32/` and `bf16/` and their logits beside it.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Of its directory; also the model's.
    pub name: String,
    /// Where its files are.
    pub directory: PathBuf,
    /// What the logits were computed for.
    pub prompts: Vec<Vec<u32>>,
}

/// Every golden, ascending by name.
///
/// # Panics
/// If one is not whole.
pub fn goldens() -> Vec<Golden> {
    let mut goldens: Vec<Golden> = std::fs::read_dir(fixtures().join("goldens"))
        .expect("goldens are committed")
        .map(|entry| {
            let directory = entry.expect("directory entries are readable").path();
            let tokens = std::fs::read(directory.join("tokens.json")).expect("a golden has tokens");
            Golden {
                name: directory.file_name().expect("it has a name").to_string_lossy().into_owned(),
                prompts: serde_json::from_slice(&tokens).expect("tokens are lists of ids"),
                directory,
            }
        })
        .collect();
    goldens.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(goldens.len() >= 8);
    goldens
}

impl Golden {
    /// Imports its config into a targets directory; what is stored in bf16 computes in `bf16`.
    ///
    /// # Panics
    /// If the config is refused or the directory is not writable.
    pub fn import_into(&self, targets: &Path, bf16: Compute) {
        let config =
            std::fs::read_to_string(self.directory.join("config.json")).expect("a golden has a config");
        let imported = import::import(&config, &self.name, bf16);
        let imported = imported.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let directory = targets.join("models").join(&self.name);
        std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
        std::fs::write(directory.join("MODEL.toml"), &imported.model_toml).expect("it is writable");
        for (name, text) in &imported.quants {
            std::fs::write(directory.join(name), text).expect("it is writable");
        }
    }
}

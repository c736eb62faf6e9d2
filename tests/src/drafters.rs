//! Tiny random drafters of blocks, for the models of some goldens (tests/reference/make_dflash_goldens.py).

use crate::goldens::{Golden, golden};
use crate::{fixtures, root};
use monomorph_compiler::spec::types::{Compute, DFLASH_FILE, DFLASH_PREFIX, Target};
use monomorph_compiler::{import, spec};
use monomorph_weights::Checkpoint;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A drafter, and the logits of some of its blocks.
#[derive(Clone, Debug)]
pub struct DrafterGolden {
    /// Name of its directory.
    pub name: String,
    /// Directory with `config.json`, the checkpoint and `blocks.safetensors`.
    pub directory: PathBuf,
    /// The golden whose model it drafts for.
    pub golden: Golden,
    /// Contexts of its blocks; the last token of each is the one sampled last.
    pub contexts: Vec<Vec<u32>>,
}

/// Every drafter, sorted by name.
///
/// # Panics
/// If one is incomplete.
pub fn drafters() -> Vec<DrafterGolden> {
    let directories = std::fs::read_dir(fixtures().join("drafters")).expect("drafters are committed");
    let mut drafters: Vec<DrafterGolden> = directories
        .map(|entry| {
            let directory = entry.expect("directory entries are readable").path();
            let facts = std::fs::read(directory.join("golden.json")).expect("a drafter has facts");
            let facts: Value = serde_json::from_slice(&facts).expect("they are JSON");
            DrafterGolden {
                name: directory.file_name().expect("it has a name").to_string_lossy().into_owned(),
                golden: golden(facts["golden"].as_str().expect("it is for a golden")),
                contexts: serde_json::from_value(facts["contexts"].clone()).expect("lists of ids"),
                directory,
            }
        })
        .collect();
    drafters.sort_by(|a, b| a.name.cmp(&b.name));
    drafters
}

/// The drafter of this name.
///
/// # Panics
/// If there is none.
pub fn drafter(name: &str) -> DrafterGolden {
    drafters().into_iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no drafter is called {name}"))
}

impl DrafterGolden {
    /// Imports its model's config and its own into a targets directory; returns the model on a CPU in f32.
    ///
    /// # Panics
    /// If a config is refused or the directory is not writable.
    pub fn import_into(&self, targets: &Path) -> Target {
        self.golden.import_into(targets, Compute::F32);
        let directory = targets.join("models").join(&self.golden.name);
        let read = |path: PathBuf| std::fs::read_to_string(path).expect("it is readable");
        let (config, model) = (read(self.directory.join("config.json")), read(directory.join("MODEL.toml")));
        let seen = import::Seen::read(&self.directory).expect("its checkpoint is sound");
        let text = import::import_drafter(&config, &self.golden.name, &model, Compute::F32, &seen);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        std::fs::write(directory.join(DFLASH_FILE), text).expect("it is writable");
        let search = [targets.to_owned(), root().join("targets")];
        spec::load(&search, &format!("cpu/{}/f32", self.golden.name))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The tensors of its model, with its own beside them.
    ///
    /// # Panics
    /// If one of the checkpoints is not sound.
    pub fn checkpoint(&self) -> Checkpoint {
        let open = |path: &Path| Checkpoint::open(path).expect("there is a checkpoint");
        let both = open(&self.golden.directory.join("f32")).with(DFLASH_PREFIX, open(&self.directory));
        both.expect("names differ by a prefix")
    }

    /// Writes its checkpoint to `directory`, changed so that it mostly drafts the token that its context ends
    /// with: the last residual stream that it reads is its context as it is, what its attention finds there
    /// goes on to the head, and little else does.
    ///
    /// # Panics
    /// If the directory is not writable.
    pub fn copying(&self, directory: &Path) {
        let bytes = std::fs::read(self.directory.join("model.safetensors")).expect("weights are readable");
        let tensors = SafeTensors::deserialize(&bytes).expect("they are sound");
        let floats = |name: &str| -> (Vec<usize>, Vec<f32>) {
            let view = tensors.tensor(name).expect("a tensor of the drafter");
            let values = view.data().as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
            (view.shape().to_vec(), values)
        };
        let changed = tensors.names().into_iter().map(|name| {
            let (shape, mut values) = floats(name);
            if name == "fc.weight" {
                let (hidden, columns) = (shape[0], shape[1]);
                for (at, value) in values.iter_mut().enumerate() {
                    let own = at % columns == columns - hidden + at / columns;
                    *value = if own { 1.0 } else { 0.05 * *value };
                }
            }
            if name.ends_with("down_proj.weight") {
                values.iter_mut().for_each(|value| *value *= 0.05);
            }
            // What values were made by, turned back.
            if let Some(prefix) = name.strip_suffix("o_proj.weight") {
                let (of, v) = floats(&format!("{prefix}v_proj.weight"));
                let (hidden, width, kept) = (shape[0], shape[1], of[0]);
                let head_dim = floats(&format!("{prefix}q_norm.weight")).0[0];
                let group = width / kept;
                for (at, value) in values.iter_mut().enumerate() {
                    let (row, column) = (at / width, at % width);
                    let kv = column / head_dim / group * head_dim + column % head_dim;
                    *value = 6.0 * v[kv * hidden + row] / group as f32;
                }
            }
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name.to_owned(), shape, bytes)
        });
        let changed: Vec<_> = changed.collect();
        let views = changed.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shape and bytes agree"))
        });
        let file = directory.join("model.safetensors");
        std::fs::write(&file, serialize(views, None).expect("they are sound")).expect("it is writable");
    }
}

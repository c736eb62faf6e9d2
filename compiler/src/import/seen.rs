//! What is known of a checkpoint: the names of its tensors, and their formats if its files are there; how its
//! answers are marked up.

use super::params;
use super::quantization::Storage;
use crate::spec::types::{ClassScales, ScaleForm};
use monomorph_formats::Format;
use monomorph_weights::{Checkpoint, Safetensors};
use std::collections::BTreeMap;
use std::path::Path;

/// The known tensors of a checkpoint, and the formats of its answers.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    tensors: BTreeMap<String, Stored>,
    /// How calls and reasoning are marked, by their names in MODEL.toml.
    pub(super) tools: Option<&'static str>,
    pub(super) reasoning: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Stored {
    /// Only the index is there, so the format is unknown.
    Unknown,
    Known(Format),
    /// An unsupported dtype.
    Other(String),
}

impl Seen {
    /// Reads what stands beside a config: files in the form that goes with it, as [`Seen::read`] does. A
    /// params.json goes with `consolidated.safetensors`.
    ///
    /// # Errors
    /// As [`Seen::read`].
    pub fn beside(config: &Path) -> Result<Seen, String> {
        let directory = config.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let own = config.file_name().is_some_and(|name| name == params::FILE);
        let stem = if own { Safetensors::MISTRAL } else { Safetensors::HUGGING_FACE };
        Seen::files(directory, Safetensors::called(directory, stem))
    }

    /// Reads a directory. `model.safetensors` or shards give names and formats;
    /// `model.safetensors.index.json` alone gives names; without either nothing is known. Where there is
    /// neither, the same of `consolidated.safetensors`.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    pub fn read(directory: &Path) -> Result<Seen, String> {
        Seen::files(directory, Safetensors::of(directory))
    }

    fn files(directory: &Path, files: Option<Safetensors>) -> Result<Seen, String> {
        let mut seen = Seen::default();
        let whole = match files {
            None => None,
            Some(Safetensors::Whole(file)) => Some(file),
            Some(Safetensors::Index(index)) => {
                let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", index.display());
                let text = std::fs::read_to_string(&index).map_err(|error| fault(&error))?;
                let shards: Index = serde_json::from_str(&text).map_err(|error| fault(&error))?;
                let there = shards.weight_map.values().all(|shard| directory.join(shard).is_file());
                seen.tensors = shards.weight_map.into_keys().map(|name| (name, Stored::Unknown)).collect();
                there.then_some(index)
            }
        };
        if let Some(path) = whole {
            let checkpoint = Checkpoint::open(&path).map_err(|error| error.to_string())?;
            seen = Seen::of(&checkpoint);
        }
        Ok(seen)
    }

    /// The tensors of an opened checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Seen {
        let known = checkpoint.tensors().map(|it| (it.name.to_owned(), Stored::Known(it.format)));
        let other =
            checkpoint.unsupported().map(|(name, dtype)| (name.to_owned(), Stored::Other(dtype.to_owned())));
        Seen { tensors: known.chain(other).collect(), ..Seen::default() }
    }

    /// The same with the formats of calls and of reasoning, by their names in MODEL.toml, that the chat
    /// template beside it shows.
    pub fn with_formats(self, tools: Option<&'static str>, reasoning: Option<&'static str>) -> Seen {
        Seen { tools, reasoning, ..self }
    }

    /// Whether any names are known.
    pub(super) fn names(&self) -> bool {
        !self.tensors.is_empty()
    }

    /// Whether formats are known.
    pub(super) fn formats(&self) -> bool {
        self.names() && !self.tensors.values().any(|stored| matches!(stored, Stored::Unknown))
    }

    /// The names of all tensors.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether a tensor's name has this beginning and end.
    pub(super) fn has(&self, begin: &str, end: &str) -> bool {
        self.tensors.keys().any(|name| name.starts_with(begin) && name.ends_with(end))
    }

    /// Whether it has the tensor of a name with `{layer}` in some layer.
    pub(super) fn has_in_a_layer(&self, name: &str) -> bool {
        name.split_once("{layer}").is_some_and(|(begin, end)| self.has(begin, end))
    }

    /// Storage of the tensor that is called `name` when unquantised.
    ///
    /// # Errors
    /// When the tensor is missing or its storage unknown.
    pub(super) fn storage(&self, name: &str) -> Result<Storage, String> {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let known = |suffix: &str| match self.tensors.get(&format!("{stem}.{suffix}")) {
            Some(Stored::Known(format)) => Some(*format),
            _ => None,
        };
        let codes = |form: ScaleForm, format| Storage {
            format: form.codes(),
            scales: Some(ClassScales { form, format }),
        };
        match self.tensors.get(name) {
            None if known("weight_packed") == Some(Format::Nvfp4) => {
                Ok(codes(ScaleForm::CompressedTensors, Format::F32))
            }
            None => Err(format!("the checkpoint has no {name:?}")),
            Some(Stored::Known(Format::Nvfp4)) if known("weight_scale_2").is_some() => {
                Ok(codes(ScaleForm::Modelopt, Format::F32))
            }
            Some(Stored::Known(Format::Fp8E4m3)) => {
                match (known("weight_scale_inv"), known("weight_scale")) {
                    (Some(scales), _) => Ok(codes(ScaleForm::Block128, scales)),
                    (None, Some(scales)) => Ok(codes(ScaleForm::Tensor, scales)),
                    (None, None) => Err(format!("{name:?} is fp8, and no scales stand beside it")),
                }
            }
            Some(Stored::Known(format)) if format.has_companions() => {
                Err(format!("{name:?} is {format}, and no known scales stand beside it"))
            }
            Some(Stored::Known(format)) => Ok(Storage::plain(*format)),
            Some(Stored::Other(dtype)) => Err(format!("{name:?} is {dtype}, which is no known format")),
            Some(Stored::Unknown) => Err(format!("nothing says how {name:?} is stored")),
        }
    }
}

/// The part of an index that is read.
#[derive(serde::Deserialize)]
struct Index {
    /// Tensors to shards.
    weight_map: BTreeMap<String, String>,
}

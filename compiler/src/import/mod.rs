//! Hugging Face `config.json`, Mistral's own `params.json`, or a GGUF file, to MODEL.toml and quant specs.
//!
//! Keys and their defaults mean what they do in transformers 5.23. An unknown family, key or value is an
//! error that names it: a model that computes something else is never guessed.

pub(crate) mod dimensions;
pub(crate) mod draft;
pub(crate) mod families;
mod family;
mod gguf;
pub(crate) mod keys;
mod layers;
mod model;
pub(crate) mod names;
mod params;
mod patterns;
mod quant;
mod quantization;
pub(crate) mod rotary;
mod seen;
mod storage;

pub use params::FILE as PARAMS_FILE;
pub use seen::Seen;

use self::draft::{Draft, DraftHead};
use crate::blocks::dflash;
use crate::blocks::vision::import::Tower;
use crate::spec;
use crate::spec::types::Compute;
use monomorph_formats::Format;
use monomorph_weights::Checkpoint;
use serde_json::{Map, Value};
use std::fmt;

/// The files of a new directory `targets/models/<name>/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Text of MODEL.toml.
    pub model_toml: String,
    /// Text of VISION.toml, if the checkpoint has a tower that is known.
    pub vision_toml: Option<String>,
    /// File name and text of every quant spec. If the config or the files show how the checkpoint is stored,
    /// this is its spec, named after the format of most of its codes, or of its floats if it has no codes.
    /// Otherwise these are `f32.toml` and `bf16.toml`.
    pub quants: Vec<(String, String)>,
}

/// Why a config was refused: every reason, each naming its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// One sentence per mistake; never empty.
    pub problems: Vec<String>,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this config cannot be imported:")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ImportError {}

/// Where a draft came from.
#[derive(Clone, Copy)]
struct Origin {
    /// Whose form it is.
    maker: &'static str,
    /// The name of the file.
    file: &'static str,
}

/// Drafts the specs of the model called `name` from its `config.json` and from what was `seen` of its
/// checkpoint. Tensors not stored in f32 compute in `compute`: [`Compute::F32`], or [`Compute::F16`], which
/// also keeps keys and values in bf16.
///
/// # Errors
/// When the text is not a JSON object, or anything in it, in the checkpoint or about `compute` is unknown.
pub fn import(config_json: &str, name: &str, compute: Compute, seen: &Seen) -> Result<Imported, ImportError> {
    let origin = Origin { maker: "Hugging Face", file: "config.json" };
    drafted(config_json, family::read, origin, name, compute, seen)
}

/// [`import`] from the `params.json` of Mistral's own releases, whose tensors have names of their own.
///
/// # Errors
/// As [`import`].
pub fn import_params(
    params_json: &str,
    name: &str,
    compute: Compute,
    seen: &Seen,
) -> Result<Imported, ImportError> {
    let origin = Origin { maker: "Mistral", file: PARAMS_FILE };
    drafted(params_json, params::read, origin, name, compute, seen)
}

/// [`import`] from the metadata and the tensors of a GGUF file.
///
/// # Errors
/// As [`import`], and when it is no GGUF file, or one of an architecture that is not known.
pub fn import_gguf(
    checkpoint: &Checkpoint,
    name: &str,
    compute: Compute,
    seen: &Seen,
) -> Result<Imported, ImportError> {
    let origin = Origin { maker: "llama.cpp", file: "GGUF file" };
    named(name)?;
    if compute != Compute::F32 && checkpoint.tensors().any(|tensor| quant::is_of_blocks(tensor.format)) {
        let what = "blocks of GGUF are multiplied in int8: `--compute f16` is for floats";
        return Err(refusal(what.to_owned()));
    }
    written(gguf::read(checkpoint, seen)?, origin, name, compute, seen)
}

/// Whether the text of a `config.json` is that of a drafter of blocks, which goes with another model.
pub fn is_drafter(config_json: &str) -> bool {
    let config: Option<Value> = serde_json::from_str(config_json).ok();
    config.as_ref().and_then(Value::as_object).is_some_and(dflash::import::is_one)
}

/// The text of DFLASH.toml of a drafter's `config.json`, for the model called `name` that `model_toml`
/// describes. Tensors that were `seen` in other formats than f32 compute in `compute`.
///
/// # Errors
/// When it is no such drafter, it is another model's, or anything in it or in its checkpoint is unknown.
pub fn import_drafter(
    config_json: &str,
    name: &str,
    model_toml: &str,
    compute: Compute,
    seen: &Seen,
) -> Result<String, ImportError> {
    named(name)?;
    let refused = |diagnostics: spec::Diagnostics| ImportError {
        problems: diagnostics.list().iter().map(|it| format!("{} ({})", it.message, it.help)).collect(),
    };
    let model = spec::read_model(name, model_toml).map_err(refused)?;
    let config: Value =
        serde_json::from_str(config_json).map_err(|error| refusal(format!("not valid JSON: {error}")))?;
    let config = config.as_object().ok_or_else(|| refusal("not a JSON object".to_owned()))?;
    let stored = match seen.storage("fc.weight") {
        Ok(stored) if seen.formats() => stored.format,
        _ => Format::Bf16,
    };
    let compute = if stored == Format::F32 { Compute::F32 } else { compute };
    let read = dflash::import::read(config, &model, stored, compute);
    let (drafter, found) = read.map_err(|problems| ImportError { problems })?;
    let mut comment = format!("# The DFlash drafter of {name}, imported from a Hugging Face config.json.\n");
    comment += "# `--draft dflash` builds it; the server is told where its weights are: `--drafter DIR`.\n";
    if !found.defaulted.is_empty() {
        comment += &format!("# Not in the config, so by default: {}.\n", found.defaulted.join(", "));
    }
    found.notes.iter().for_each(|note| comment += &format!("# {note}\n"));
    let text = comment + "\n" + &drafter.write();
    // Refuse here what the loader would refuse, before anything is written.
    let read = spec::check_dflash(&model, &text).map_err(refused)?;
    let missing: Vec<String> = read
        .names
        .values()
        .filter_map(|file| file.name.strip_prefix(dflash::DFLASH_PREFIX))
        .filter(|name| seen.names() && !seen.has_in_a_layer(name) && !seen.has(name, ""))
        .map(|name| format!("the drafter's checkpoint has no {name:?}"))
        .collect();
    if missing.is_empty() { Ok(text) } else { Err(ImportError { problems: missing }) }
}

fn drafted(
    json: &str,
    read: impl Fn(&Map<String, Value>) -> Result<Draft, ImportError>,
    origin: Origin,
    name: &str,
    compute: Compute,
    seen: &Seen,
) -> Result<Imported, ImportError> {
    named(name)?;
    let config: Value =
        serde_json::from_str(json).map_err(|error| refusal(format!("not valid JSON: {error}")))?;
    let config = config.as_object().ok_or_else(|| refusal("not a JSON object".to_owned()))?;
    written(read(config)?, origin, name, compute, seen)
}

fn refusal(problem: String) -> ImportError {
    ImportError { problems: vec![problem] }
}

/// # Errors
/// When a model cannot be called so.
fn named(name: &str) -> Result<(), ImportError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
        let rule = "letters, digits, `.`, `_` and `-`, the first a letter or digit";
        return Err(refusal(format!("{name:?} cannot name a model: {rule}")));
    }
    Ok(())
}

/// Writes the specs of a draft, and checks them.
fn written(
    mut draft: Draft,
    origin: Origin,
    name: &str,
    compute: Compute,
    seen: &Seen,
) -> Result<Imported, ImportError> {
    draft_head(&mut draft, seen);
    let tower = vision_tower(&mut draft, origin, name, compute, seen);
    let model_toml = model::write(&draft, name, origin, seen);
    let loader = |diagnostics: spec::Diagnostics| ImportError {
        problems: diagnostics.list().iter().map(|it| format!("{} ({})", it.message, it.help)).collect(),
    };
    let model = spec::check(name, &model_toml, None, &[]).map_err(loader)?;
    let tower = tower.map(|tower| {
        let text = tower?;
        let checked = spec::check(name, &model_toml, Some(&text), &[]).map_err(loader);
        checked.map(|_| text).map_err(|error| error.problems)
    });
    let vision_toml = match tower {
        None => None,
        Some(Ok(text)) => {
            draft.notes.push("The vision tower stands in VISION.toml: `--vision on` builds it.".to_owned());
            Some(text)
        }
        // The text part is sound without it.
        Some(Err(problems)) => {
            draft.notes.push(format!("The vision tower is left out: {}.", problems.join("; ")));
            None
        }
    };
    let model_toml = model::write(&draft, name, origin, seen);
    let tensors = || spec::tensors(&model).into_iter().chain(spec::draft_tensors(&model)).collect();
    let known = seen.formats() || draft.quantization.is_some();
    let floats: &[Format] = if known { &[Format::Bf16] } else { &[Format::F32, Format::Bf16] };
    let mut quants = Vec::new();
    for format in floats {
        let all =
            storage::all(&draft, tensors(), seen, *format).map_err(|problems| ImportError { problems })?;
        let file = format!("{}.toml", storage::called(storage::most(&all)));
        quants.push((file, quant::write(&draft, name, &all, compute, seen)));
    }
    // Refuse here what the loader would refuse, before anything is written.
    spec::check(name, &model_toml, vision_toml.as_deref(), &quants).map_err(loader)?;
    Ok(Imported { model_toml, vision_toml, quants })
}

/// Drafts VISION.toml, if the config has a tower.
///
/// # Errors
/// Why it is left out: something in it is not known, or the checkpoint does not have it.
fn vision_tower(
    draft: &mut Draft,
    origin: Origin,
    name: &str,
    compute: Compute,
    seen: &Seen,
) -> Option<Result<String, Vec<String>>> {
    let Tower { mut vision, defaulted } = match draft.tower.take()? {
        Ok(tower) => tower,
        Err(problems) => return Some(Err(problems)),
    };
    let patch = &vision.names["vision.patch"].name;
    if seen.names() && !seen.has(patch, "") {
        return Some(Err(vec![format!("the checkpoint has no {patch:?}")]));
    }
    if let Some(stored) = seen.storage(patch).ok().filter(|_| seen.formats()) {
        vision.stored = stored.format;
    }
    if vision.stored != Format::F32 {
        vision.compute = compute;
    }
    let Origin { maker, file } = origin;
    let mut comment = format!("# The vision tower of {name}, imported from a {maker} {file}.\n");
    if !defaulted.is_empty() {
        comment += &format!("# Not in the config, so as transformers has it: {}.\n", defaulted.join(", "));
    }
    Some(Ok(comment + "\n" + &vision.write(draft.hidden)))
}

/// Decides whether there is a draft head. The checkpoint decides if it was seen, else the config; by default
/// there is none.
fn draft_head(draft: &mut Draft, seen: &Seen) {
    let fc = draft.naming.draft.fc;
    let fc = match draft.gguf {
        None => Some(fc.to_owned()),
        Some(architecture) => architecture.called(fc, draft.layers),
    };
    // Codes of some formats have other endings.
    let has = |fc: &str| seen.has(fc.trim_end_matches("weight"), "weight");
    let there = seen.names().then(|| fc.as_deref().is_some_and(has));
    draft.head = match (draft.head, there) {
        (DraftHead::Present | DraftHead::Unsaid, Some(true)) | (DraftHead::Present, None) => {
            DraftHead::Present
        }
        (DraftHead::Never, _) => return,
        _ => DraftHead::Absent,
    };
    let note = match draft.head {
        DraftHead::Present => "The draft layer (mtp.*) is built where a build is to draft: `--draft mtp`.",
        _ => "There is no draft layer (mtp.*), or none that is known.",
    };
    draft.notes.push(note.to_owned());
}

//! The targets of one or several targets directories.

use super::VISION_FILE;
use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::reader::{list as join, nearest};
use super::types::DFLASH_FILE;
use std::path::{Path, PathBuf};

/// Everything the targets directories contain; any hardware may be combined with any model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// Hardware, ascending by name.
    pub hardware: Vec<HardwareEntry>,
    /// Models, ascending by name.
    pub models: Vec<ModelEntry>,
}

/// A piece of hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareEntry {
    /// Name of the directory with its HARDWARE.toml.
    pub name: String,
    /// The targets directory it is in.
    pub targets_dir: PathBuf,
}

/// A model and its quantisations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// Name of the directory with its MODEL.toml.
    pub name: String,
    /// The targets directory it is in.
    pub targets_dir: PathBuf,
    /// Quant names, ascending: the `.toml` files beside MODEL.toml, VISION.toml and DFLASH.toml.
    pub quants: Vec<String>,
}

impl Catalogue {
    /// Names of all targets, `hardware/model/quant`, ascending.
    pub fn targets(&self) -> Vec<String> {
        let mut targets = Vec::new();
        for hardware in &self.hardware {
            for model in &self.models {
                let name = |quant| format!("{}/{}/{quant}", hardware.name, model.name);
                targets.extend(model.quants.iter().map(name));
            }
        }
        targets
    }
}

/// Names of all targets, `hardware/model/quant`, by the files in the targets directories.
///
/// # Errors
/// As [`catalogue`].
pub fn list(search: &[PathBuf]) -> Result<Vec<String>, Diagnostics> {
    catalogue(search).map(|catalogue| catalogue.targets())
}

/// Lists hardware, models and quantisations without reading them. If two directories have hardware or a model
/// of the same name, the earlier directory takes precedence.
///
/// # Errors
/// When a directory cannot be listed.
pub fn catalogue(search: &[PathBuf]) -> Result<Catalogue, Diagnostics> {
    let sink = Sink::default();
    let catalogue = collect(search, &sink);
    sink.finish(catalogue)
}

fn collect(search: &[PathBuf], sink: &Sink) -> Option<Catalogue> {
    let mut catalogue = Catalogue { hardware: Vec::new(), models: Vec::new() };
    for dir in search {
        let (hardware, models) = (dir.join("hardware"), dir.join("models"));
        if !hardware.is_dir() && !models.is_dir() {
            let message = format!("{} is not a targets directory", dir.display());
            let help = "one holds hardware/<name>/HARDWARE.toml, models/<name>/MODEL.toml or both".to_owned();
            sink.push(Diagnostic::outside(dir, message, help));
            return None;
        }
        for name in entries(&hardware, sink)? {
            let known = catalogue.hardware.iter().any(|it| it.name == name);
            if !known && hardware.join(&name).join("HARDWARE.toml").is_file() {
                catalogue.hardware.push(HardwareEntry { name, targets_dir: dir.clone() });
            }
        }
        for name in entries(&models, sink)? {
            let known = catalogue.models.iter().any(|it| it.name == name);
            if !known && models.join(&name).join("MODEL.toml").is_file() {
                let files = entries(&models.join(&name), sink)?;
                let other = ["MODEL.toml", VISION_FILE, DFLASH_FILE];
                let quants = files.iter().filter(|file| !other.contains(&file.as_str()));
                let quants =
                    quants.filter_map(|file| file.strip_suffix(".toml")).map(str::to_owned).collect();
                catalogue.models.push(ModelEntry { name, targets_dir: dir.clone(), quants });
            }
        }
    }
    catalogue.hardware.sort_by(|a, b| a.name.cmp(&b.name));
    catalogue.models.sort_by(|a, b| a.name.cmp(&b.name));
    Some(catalogue)
}

/// The names in a directory, ascending; empty if it does not exist.
fn entries(dir: &Path, sink: &Sink) -> Option<Vec<String>> {
    let read = || -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // A name that is not UTF-8 cannot be given on a command line either.
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    };
    match read() {
        Ok(names) => Some(names),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(Vec::new()),
        Err(error) => {
            let message = format!("the directory {} cannot be listed: {error}", dir.display());
            sink.push(Diagnostic::outside(dir, message, "make it a readable directory".to_owned()));
            None
        }
    }
}

/// The parts of a target that exist.
pub(super) struct Located {
    pub(super) hardware: Option<HardwareEntry>,
    pub(super) model: Option<ModelEntry>,
    pub(super) quant: Option<String>,
}

/// Splits a target's name, and reports every part that does not exist, with the available ones.
pub(super) fn locate(search: &[PathBuf], target: &str, sink: &Sink) -> Option<Located> {
    let catalogue = collect(search, sink)?;
    let parts: Vec<&str> = target.split('/').collect();
    let [hardware, model, quant] = parts[..] else {
        let message = format!("{target:?} is not a target");
        let known = catalogue.targets();
        let help = match known.is_empty() {
            true => "write HARDWARE/MODEL/QUANT".to_owned(),
            false => format!("write HARDWARE/MODEL/QUANT: {}", join(known.iter())),
        };
        sink.push(Diagnostic::outside(Path::new(""), message, help));
        return None;
    };
    let found = find(&catalogue.hardware, |it| &it.name, "hardware", hardware, Path::new("hardware"), sink);
    let model = find(&catalogue.models, |it| &it.name, "model", model, Path::new("models"), sink);
    let quant = model.as_ref().and_then(|it| {
        find(&it.quants, |it| it, "quant spec", quant, &Path::new("models").join(&it.name), sink)
    });
    Some(Located { hardware: found, model, quant })
}

/// Finds hardware by name, or reports the available names.
pub(super) fn locate_hardware(search: &[PathBuf], name: &str, sink: &Sink) -> Option<HardwareEntry> {
    let catalogue = collect(search, sink)?;
    find(&catalogue.hardware, |it| &it.name, "hardware", name, Path::new("hardware"), sink)
}

/// Finds an entry by name, or reports the available names.
fn find<T: Clone>(
    known: &[T],
    name_of: fn(&T) -> &String,
    what: &str,
    name: &str,
    place: &Path,
    sink: &Sink,
) -> Option<T> {
    if let Some(entry) = known.iter().find(|it| name_of(it) == name) {
        return Some(entry.clone());
    }
    let near = nearest(name, known.iter().map(|it| name_of(it).as_str()));
    let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    let help = match known.is_empty() {
        true => "there is none yet".to_owned(),
        false => format!("there is {}{near}", join(known.iter().map(name_of))),
    };
    sink.push(Diagnostic::outside(place, format!("there is no {what} {name:?}"), help));
    None
}

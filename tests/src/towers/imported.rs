//! Goldens with a tower, as targets.

use crate::{fixtures, root};
use monomorph_compiler::import::{self, Seen};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target};
use std::fs;
use std::path::{Path, PathBuf};

/// Where a golden's config stands; its checkpoint is in `f32` below.
pub fn directory(golden: &str) -> PathBuf {
    fixtures().join("towers").join(golden)
}

/// Imports the config in a golden's directory into a targets directory, as the model `name`. In
/// [`Compute::F16`] the products of tower and model round, which those of a checkpoint in f32 do not by
/// themselves, and keys and values are in bf16, as of checkpoints that are stored so.
///
/// # Panics
/// If the config has no tower, or is refused.
pub fn import_into(targets: &Path, directory: &Path, name: &str, compute: Compute) {
    let config = fs::read_to_string(directory.join("config.json")).expect("a golden has a config");
    let seen = Seen::read(&directory.join("f32")).expect("checkpoints are sound");
    let imported = import::import(&config, name, Compute::F32, &seen);
    let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
    let model = targets.join("models").join(name);
    fs::create_dir_all(&model).expect("a temporary directory is writable");
    let vision = imported.vision_toml.unwrap_or_else(|| panic!("{name}: {}", imported.model_toml));
    let files = [("MODEL.toml".to_owned(), imported.model_toml), ("VISION.toml".to_owned(), vision)];
    for (file, text) in files.into_iter().chain(imported.quants) {
        let text = match (file.as_str(), compute) {
            ("VISION.toml", Compute::F16) => text.replace("compute = \"f32\"", "compute = \"f16\""),
            ("f32.toml", Compute::F16) => rounding(&text),
            _ => text,
        };
        fs::write(model.join(file), text).expect("a temporary directory is writable");
    }
}

/// A quant spec of tensors in f32 whose products round to f16.
fn rounding(text: &str) -> String {
    let (_, stored) = text.split_once("[stored]\n").expect("it says how tensors are stored");
    let classes = stored.lines().take_while(|line| !line.is_empty());
    let products = classes.filter(|line| !line.starts_with("norm") && !line.starts_with("router"));
    let compute: String = products.map(|line| line.replace("f32", "f16") + "\n").collect();
    let kv = "[kv]\nformat = \"f32\"";
    assert!(text.contains(kv), "{text}");
    text.replace(kv, &format!("[compute]\n{compute}\n[kv]\nformat = \"bf16\""))
}

/// The target of an imported model, with its tower if `vision` says so.
///
/// # Errors
/// What is wrong with its specs, or does not fit the hardware.
pub fn load(targets: &Path, hardware: &str, name: &str, vision: bool) -> Result<Target, String> {
    load_with(targets, hardware, name, &BuildOptions { vision, ..BuildOptions::default() })
}

/// The same, built with further options.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    targets: &Path,
    hardware: &str,
    name: &str,
    options: &BuildOptions,
) -> Result<Target, String> {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load_with(&search, &format!("{hardware}/{name}/f32"), options).map_err(|error| error.to_string())
}

/// Largest difference of a golden's answers where products round to f16: of a row of logits, relative to its
/// largest magnitude, or of a log-probability. It is that of emulated servers of text, but of Gemma 4 more,
/// for its scores are not divided.
pub fn in_f16(golden: &str) -> f32 {
    if golden == "gemma4" { 5e-2 } else { 2e-2 }
}

//! Turns TOML specs into validated values. All mistakes of a target are reported at once, with file, line and
//! key.

mod batches;
mod catalogue;
mod converted;
pub(crate) mod diagnostic;
mod drafting;
mod fit;
mod hardware;
mod kept;
mod memory;
pub(crate) mod model;
mod profile;
mod quant;
mod ranks;
pub(crate) mod reader;
mod tensors;
mod tuning;
pub mod types;
mod variants;
mod vision;
pub(crate) mod words;

pub use batches::with_batch_invariant;
pub use catalogue::{Catalogue, HardwareEntry, ModelEntry, catalogue, list};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use drafting::with_draft;
pub(crate) use fit::{check_named_once, check_names};
pub use kept::with_kv;
pub use memory::{kv_block_bytes, weight_bytes};
pub use profile::with_profile;
pub(crate) use quant::names as file_names;
pub use ranks::{with_hosts, with_ranks};
pub(crate) use tensors::LayerTensors;
pub use tensors::{LAYER_PREFIX, TensorDecl, draft_tensors, has_experts, stored_tensors, tensors};
pub use variants::variants;
pub use vision::with_vision;
use vision::without_vision;

use catalogue::Located;
use diagnostic::{Sink, Source};
use reader::Table;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use types::{
    BuildOptions, DFLASH_FILE, Dflash, Hardware, Model, Provenance, Quant, Ranks, SpecFile, Target, Tuning,
    Vision,
};

/// The file beside MODEL.toml that describes a vision tower.
pub const VISION_FILE: &str = "VISION.toml";

/// Reads and checks the three specs of `target`, `hardware/model/quant`, and its tuning file
/// `tuning/hardware/model/quant.toml` if there is one. Hardware, model and tuning are each taken from the
/// first directory of `search` that has them; a quant spec is beside its model.
///
/// # Errors
/// All their mistakes, each with its remedy; if a part does not exist, the available ones.
pub fn load(search: &[PathBuf], target: &str) -> Result<Target, Diagnostics> {
    load_for(search, target, 1)
}

/// [`load`], for weights that fit the memory of so many ranks together.
fn load_for(search: &[PathBuf], target: &str, ranks: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let target = catalogue::locate(search, target, &sink).and_then(|it| read(search, &it, ranks, &sink));
    sink.finish(target)
}

/// [`load`], followed by [`with_kv`], [`with_vision`], [`with_ranks`], [`with_hosts`], [`with_draft`],
/// [`with_batch_invariant`] and [`with_profile`] if `options` ask for them.
///
/// # Errors
/// Those of all eight.
pub fn load_with(search: &[PathBuf], target: &str, options: &BuildOptions) -> Result<Target, Diagnostics> {
    let target = load_for(search, target, options.ranks.unwrap_or(1).max(1))?;
    let target = options.kv.into_iter().try_fold(target, with_kv)?;
    let target = match options.vision {
        true => with_vision(target, options.image_patches)?,
        false => options.image_patches.into_iter().try_fold(target, without_vision)?,
    };
    let ranks = options.ranks.map(|count| Ranks { count, whole_experts: options.whole_experts });
    let target = ranks.into_iter().try_fold(target, with_ranks)?;
    let target = options.hosts.into_iter().try_fold(target, with_hosts)?;
    let target = options.draft.iter().try_fold(target, with_draft)?;
    let target = options.batch_invariant.into_iter().try_fold(target, with_batch_invariant)?;
    if options.profile { with_profile(target) } else { Ok(target) }
}

/// Loads hardware by name and checks it alone.
///
/// # Errors
/// All its mistakes; if there is no such hardware, the available names.
pub fn load_hardware(search: &[PathBuf], name: &str) -> Result<Hardware, Diagnostics> {
    let sink = Sink::default();
    let hardware = catalogue::locate_hardware(search, name, &sink).and_then(|it| {
        let file = Path::new("hardware").join(&it.name).join("HARDWARE.toml");
        let read = |source: &Source, root: Table| hardware::read(source, &it.name, root);
        document(&it.targets_dir, file, &sink, read).map(|(read, _)| read.hardware)
    });
    sink.finish(hardware)
}

/// The quant spec of `target`, checked as in [`load`] except that the weights need not fit the hardware: for
/// a checkpoint that is read but not served.
///
/// # Errors
/// As those of [`load`].
pub fn load_quant(search: &[PathBuf], target: &str) -> Result<Quant, Diagnostics> {
    let sink = Sink::default();
    let quant = catalogue::locate(search, target, &sink)
        .and_then(|it| model_and_quant(&it, &sink, &mut Vec::new()).1);
    sink.finish(quant)
}

/// The two of them, whose files are added to `specs`.
fn model_and_quant(it: &Located, sink: &Sink, specs: &mut Vec<SpecFile>) -> (Option<Model>, Option<Quant>) {
    let model = it.model.as_ref().and_then(|it| {
        let file = Path::new("models").join(&it.name).join("MODEL.toml");
        let read = |source: &Source, root: Table| model::read(source, &it.name, root);
        let (model, source) = document(&it.targets_dir, file, sink, read)?;
        specs.push(source.file());
        Some(model)
    });
    let quant = it.model.as_ref().zip(it.quant.as_ref()).and_then(|(it, name)| {
        let file = Path::new("models").join(&it.name).join(format!("{name}.toml"));
        let read = |source: &Source, root: Table| Some(quant::read(source, root));
        let (read, source) = document(&it.targets_dir, file, sink, read)?;
        specs.push(source.file());
        // Without a valid model, only mistakes of the file alone are certain.
        fit::quant(&source, name, read, model.as_ref()?)
    });
    (model, quant)
}

/// The vision tower of a model, if a file beside it describes one.
fn tower(it: &Located, sink: &Sink, model: &Model) -> Option<Vision> {
    let it = it.model.as_ref()?;
    let file = Path::new("models").join(&it.name).join(VISION_FILE);
    let there = it.targets_dir.join(&file).is_file();
    let read = |source: &Source, root: Table| Vision::read(source, root, model);
    there.then(|| document(&it.targets_dir, file, sink, read))?.map(|(tower, _)| tower)
}

/// The drafter of blocks of a model, if a file beside it describes one.
fn dflash(it: &Located, sink: &Sink, model: &Model) -> Option<Dflash> {
    let it = it.model.as_ref()?;
    let file = Path::new("models").join(&it.name).join(DFLASH_FILE);
    let there = it.targets_dir.join(&file).is_file();
    let read = |source: &Source, root: Table| Dflash::read(source, root, model);
    there.then(|| document(&it.targets_dir, file, sink, read))?.map(|(dflash, _)| dflash)
}

fn read(search: &[PathBuf], it: &Located, ranks: usize, sink: &Sink) -> Option<Target> {
    let hardware = it.hardware.as_ref().and_then(|it| {
        let file = Path::new("hardware").join(&it.name).join("HARDWARE.toml");
        document(&it.targets_dir, file, sink, |source, root| hardware::read(source, &it.name, root))
    });
    let mut specs: Vec<_> = hardware.iter().map(|(_, source)| source.file()).collect();
    let (model, quant) = model_and_quant(it, sink, &mut specs);
    let tower = model.as_ref().and_then(|model| tower(it, sink, model));
    let dflash = model.as_ref().and_then(|model| dflash(it, sink, model));
    let ((hardware, source), model, quant) = (hardware?, model?, quant?);
    if sink.is_empty() {
        memory::check(&source, &hardware, &model, &quant, ranks);
    }
    let file = Path::new("tuning").join(&it.hardware.as_ref()?.name).join(&model.name);
    let file = file.join(format!("{}.toml", quant.name));
    let tuned = search.iter().find(|dir| dir.join(&file).is_file());
    let tuning = match (hardware.knobs, tuned) {
        (Some(knobs), Some(dir)) => {
            let read = |source: &Source, root: Table| tuning::read(source, root, knobs);
            let (tuning, source) = document(dir, file, sink, read)?;
            specs.push(source.file());
            Some(tuning)
        }
        (Some(knobs), None) => {
            Some(Tuning { defaults: knobs, knobs, phases: BTreeMap::new(), provenance: Provenance::Defaults })
        }
        (None, Some(dir)) => {
            let refuse = |source: &Source, _: Table| {
                let message = "this tunes hardware of a kind that has nothing to tune".to_owned();
                let help = "tuning files are for hardware of kind \"cuda\": take it out".to_owned();
                source.report(0..0, "", message, "the whole file", help);
                None::<()>
            };
            document(dir, file, sink, refuse);
            None
        }
        (None, None) => None,
    };
    Some(Target {
        hardware: hardware.hardware,
        model,
        tower,
        dflash,
        quant,
        tuning,
        specs,
        draft: None,
        batch_invariant: None,
        ranks: 1,
        hosts: 1,
        whole_experts: false,
        kv: None,
        vision: false,
        image_patches: None,
        profile: false,
        racecheck: false,
    })
}

/// Reads a file and passes its root table to `read`.
fn document<'s, T>(
    dir: &Path,
    name: PathBuf,
    sink: &'s Sink,
    read: impl FnOnce(&Source, Table) -> Option<T>,
) -> Option<(T, Source<'s>)> {
    let text = match std::fs::read_to_string(dir.join(&name)) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("{} cannot be read: {error}", name.display());
            let help = "every spec is a text file in UTF-8".to_owned();
            sink.push(Diagnostic::outside(&name, message, help));
            return None;
        }
    };
    let source = Source { name, text: text.as_str().into(), sink };
    let root = reader::parse(&source, &text)?;
    let value = read(&source, Table::root(&source, &root))?;
    Some((value, source))
}

/// Reads MODEL.toml of the model called `name`, which is `model_toml`.
///
/// # Errors
/// All its mistakes.
pub(crate) fn read_model(name: &str, model_toml: &str) -> Result<Model, Diagnostics> {
    check(name, model_toml, None, &[])
}

/// Checks the text of DFLASH.toml beside a model.
///
/// # Errors
/// All its mistakes.
pub(crate) fn check_dflash(model: &Model, dflash_toml: &str) -> Result<Dflash, Diagnostics> {
    let sink = Sink::default();
    let source = Source { name: DFLASH_FILE.into(), text: dflash_toml.into(), sink: &sink };
    let root = reader::parse(&source, dflash_toml);
    let dflash = root.and_then(|root| Dflash::read(&source, Table::root(&source, &root), model));
    sink.finish(dflash)
}

/// Checks specs that are not files yet: a model, its vision tower, and quant specs by file name.
pub(crate) fn check(
    name: &str,
    model_toml: &str,
    vision_toml: Option<&str>,
    quants: &[(String, String)],
) -> Result<Model, Diagnostics> {
    let sink = Sink::default();
    let source = |file: &str, text: &str| Source { name: file.into(), text: text.into(), sink: &sink };
    let model_source = source("MODEL.toml", model_toml);
    let root = reader::parse(&model_source, model_toml);
    let model = root.and_then(|root| model::read(&model_source, name, Table::root(&model_source, &root)));
    if let (Some(text), Some(model)) = (vision_toml, &model) {
        let source = source(VISION_FILE, text);
        let root = reader::parse(&source, text);
        root.and_then(|root| Vision::read(&source, Table::root(&source, &root), model));
    }
    for (file, text) in quants {
        let source = source(file, text);
        let Some(root) = reader::parse(&source, text) else { continue };
        let read = quant::read(&source, Table::root(&source, &root));
        if let Some(model) = &model {
            fit::quant(&source, file.trim_end_matches(".toml"), read, model);
        }
    }
    sink.finish(model)
}

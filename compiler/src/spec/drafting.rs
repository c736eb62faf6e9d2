//! Checks that a target can draft as a build asks.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::memory::{kv_block_bytes, weight_bytes};
use super::types::{
    Container, DFLASH_FILE, Dflash, DraftMethod, DraftOption, Drafting, HardwareKind, Mixer, Model, Target,
};
use crate::plan::KvHeads;
use std::path::{Path, PathBuf};

/// `target`, built to draft.
///
/// # Errors
/// When the model or its checkpoint has no draft head or drafter, the backend has no passes of the method,
/// the model has no layers to skip or no others, a number is out of range, or the head does not fit into
/// memory as well.
pub fn with_draft(mut target: Target, option: &DraftOption) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let (model, quant) = (&target.model, &target.quant);
    let directory = Path::new("models").join(&model.name);
    let refuse = |file: PathBuf, message: String, help: &str| {
        sink.push(Diagnostic::outside(&file, message, help.to_owned()));
    };
    let files = || (directory.join("MODEL.toml"), directory.join(format!("{}.toml", quant.name)));
    let DraftOption { method, mut drafts, .. } = *option;
    let mut dflash = None;
    let head = method == DraftMethod::Mtp;
    if method == DraftMethod::Ngram {
        let (flags, given) = (
            ["--draft-vocabulary", "--forced-acceptance"],
            [option.vocabulary.is_some(), option.forced_acceptance.is_some()],
        );
        for (flag, _) in flags.into_iter().zip(given).filter(|(_, given)| *given) {
            let message =
                format!("`{flag}` goes with passes that draft, and `--draft {}` has none", method.name());
            refuse(PathBuf::from(flag), message, "build it without");
        }
    } else if method == DraftMethod::Layers {
        if let Some((message, help)) = not_skipped(model, &files().0) {
            refuse(files().0, message, help);
        }
    } else if let DraftMethod::Dflash { window } = method {
        for (place, message, help) in not_by_blocks(&target, window) {
            refuse(place, message, help);
        }
        dflash = target.dflash.clone().map(|it| window.iter().fold(it, |it, window| it.within(*window)));
    } else if model.draft.is_none() {
        let message = format!("{} has no draft head, and `--draft` was given", files().0.display());
        refuse(files().0, message, "a model that has one says so in `[draft.mtp]`; build this one without");
    } else if !quant.has_draft() {
        let message =
            format!("the checkpoint of {} has no draft head, and `--draft` was given", target.name());
        let help = "its quant spec names no tensor that begins with `draft.`; build it without, or take a checkpoint that has them";
        refuse(files().1, message, help);
    }
    // A block has a row for each draft besides that of the token sampled last.
    let most = dflash.as_ref().map_or(method.most(), |it| method.most().min(it.block - 1));
    if dflash.is_some() && drafts == 0 {
        drafts = most;
    }
    if !(1..=most).contains(&drafts) {
        let message = format!("`--drafts` is {drafts}");
        refuse(PathBuf::from("--drafts"), message, &format!("1 to {most} with `--draft {}`", method.name()));
    }
    let vocabulary = option.vocabulary.unwrap_or(model.vocabulary);
    if !(1..=model.vocabulary).contains(&vocabulary) {
        let message = format!("`--draft-vocabulary` is {vocabulary}");
        let help = format!("1 to {}, the ids that {} has", model.vocabulary, model.name);
        refuse(PathBuf::from("--draft-vocabulary"), message, &help);
    }
    if let Some(rate) = option.forced_acceptance.filter(|rate| !(0.0..=1.0).contains(rate)) {
        let message = format!("`--forced-acceptance` is {rate}");
        refuse(PathBuf::from("--forced-acceptance"), message, "a rate from 0 to 1");
    }
    let draft = Drafting { method, drafts, vocabulary, forced_acceptance: option.forced_acceptance };
    let of_drafter = dflash.as_ref().map_or(0, |it| drafter_bytes(it, &target));
    let needed = weight_bytes(model, quant, head)
        + kv_block_bytes(model, quant, &target.hardware.kind, head)
        + of_drafter;
    if sink.is_empty() && needed.div_ceil(target.ranks as u128) > u128::from(target.hardware.memory_bytes) {
        let what = if head { "draft head" } else { "drafter" };
        let message = format!("{} does not fit the memory with its {what}", target.name());
        let help =
            format!("it needs {needed} bytes at least, and there are {}", target.hardware.memory_bytes);
        refuse(PathBuf::from("--draft"), message, &help);
    }
    target.draft = Some(draft);
    if let Some(dflash) = dflash {
        target.specs.push(dflash.file.clone());
        target.dflash = Some(dflash);
    }
    sink.finish(Some(target))
}

/// Why `target` cannot draft by blocks within a `window`: where that is said, what is wrong, and what to do
/// instead.
fn not_by_blocks(target: &Target, window: Option<usize>) -> Vec<(PathBuf, String, &'static str)> {
    let directory = Path::new("models").join(&target.model.name);
    let mut wrong = Vec::new();
    if target.dflash.is_none() {
        let message = format!("{} has no {DFLASH_FILE}, and `--draft dflash` was given", directory.display());
        let help = "`cargo xtask import` writes that file from the config.json of the model's drafter";
        wrong.push((directory.clone(), message, help));
    }
    if matches!(target.hardware.kind, HardwareKind::Cuda(_)) {
        let message = format!("the CUDA backend has no passes of blocks, and {} is for one", target.name());
        let help = "`--draft dflash` is for CPUs; on a card `--draft mtp`, `ngram` or `self` draft";
        wrong.push((PathBuf::from("--draft"), message, help));
    }
    if target.quant.checkpoint.container == Container::Gguf {
        let file = directory.join(format!("{}.toml", target.quant.name));
        let message =
            format!("the checkpoint of {} is a GGUF file, and `--draft dflash` was given", target.name());
        wrong.push((file, message, "a drafter goes with a checkpoint of safetensors, as it is itself"));
    }
    if target.vision {
        let message = "`--draft dflash` and `--vision on` were both given".to_owned();
        wrong.push((PathBuf::from("--draft"), message, "a drafter reads text alone: build with one of them"));
    }
    if let Some(window) = window.filter(|window| !(1..=target.model.context).contains(window)) {
        let message = format!("`--draft-window` is {window}");
        let help = "1 to the model's context in tokens; without it every layer has its own window";
        wrong.push((PathBuf::from("--draft-window"), message, help));
    }
    wrong
}

/// Bytes of a drafter's tensors as stored, and of one K/V block over its layers.
fn drafter_bytes(dflash: &Dflash, target: &Target) -> u128 {
    let of = |tensor: super::TensorDecl| {
        let elements = tensor.rows as u128 * tensor.columns.unwrap_or(1) as u128 * tensor.instances() as u128;
        elements * dflash.stored.block_bytes() as u128
    };
    let quant = &target.quant;
    let heads = KvHeads {
        heads: dflash.attention.kv_heads,
        head_dim: dflash.attention.head_dim,
        latent: None,
        window: None,
    };
    let layout = heads.layout(&target.hardware.kind, quant.kv_block, quant.kv_formats);
    let block = (layout.block_bytes() * dflash.layers.len()) as u128;
    dflash.tensors(target.model.hidden).into_iter().map(of).sum::<u128>() + block
}

/// Why `model`, described by `file`, cannot draft without its recurrent layers, and what to do instead.
fn not_skipped(model: &Model, file: &Path) -> Option<(String, &'static str)> {
    let count = |which: fn(&Mixer) -> bool| model.layer_mixers().filter(|it| which(it)).count();
    if count(Mixer::recurs) == 0 {
        let message = format!("{} has no recurrent layers, and `--draft self` skips those", file.display());
        return Some((message, "a pass would be the whole model; `--draft ngram` drafts for any"));
    }
    if count(|it| it.kv().is_some()) == 0 {
        let message =
            format!("every layer of {} is recurrent, and `--draft self` skips those", file.display());
        return Some((message, "a pass would have no layer; `--draft ngram` drafts for any model"));
    }
    None
}

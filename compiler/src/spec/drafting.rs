//! Checks that a target can draft as a build asks.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::memory::{kv_block_bytes, weight_bytes};
use super::types::{DraftMethod, DraftOption, Drafting, Mixer, Model, Target};
use std::path::{Path, PathBuf};

/// `target`, built to draft.
///
/// # Errors
/// When the model or its checkpoint has no draft head, the model has no layers to skip or no others, a number
/// is out of range, or the head does not fit into memory as well.
pub fn with_draft(mut target: Target, option: &DraftOption) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let (model, quant) = (&target.model, &target.quant);
    let directory = Path::new("models").join(&model.name);
    let refuse = |file: PathBuf, message: String, help: &str| {
        sink.push(Diagnostic::outside(&file, message, help.to_owned()));
    };
    let files = || (directory.join("MODEL.toml"), directory.join(format!("{}.toml", quant.name)));
    let DraftOption { method, drafts, .. } = *option;
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
    } else if model.draft.is_none() {
        let message = format!("{} has no draft head, and `--draft` was given", files().0.display());
        refuse(files().0, message, "a model that has one says so in `[draft.mtp]`; build this one without");
    } else if !quant.has_draft() {
        let message =
            format!("the checkpoint of {} has no draft head, and `--draft` was given", target.name());
        let help = "its quant spec names no tensor that begins with `draft.`; build it without, or take a checkpoint that has them";
        refuse(files().1, message, help);
    }
    let most = method.most();
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
    let needed = weight_bytes(model, quant, head) + kv_block_bytes(model, quant, &target.hardware.kind, head);
    if sink.is_empty() && needed.div_ceil(target.ranks as u128) > u128::from(target.hardware.memory_bytes) {
        let message = format!("{} does not fit the memory with its draft head", target.name());
        let help =
            format!("it needs {needed} bytes at least, and there are {}", target.hardware.memory_bytes);
        refuse(PathBuf::from("--draft"), message, &help);
    }
    target.draft = Some(draft);
    sink.finish(Some(target))
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

//! A made-up checkpoint that servers of one and of several ranks answer from, over HTTP and in any format of
//! text: stored once at random, and once so that the model mostly repeats itself.

use crate::crowd::write_tokenizer;
use crate::joins::store;
use crate::repeating::repeat;
use monomorph_compiler::spec::types::Compute;
use std::path::{Path, PathBuf};

/// The checkpoint.
#[derive(Clone, Debug)]
pub struct Served {
    /// `model/quant`.
    pub name: String,
    /// Random weights, with a tokenizer.
    pub random: PathBuf,
    /// The same, changed so that most tokens are the one before; drafts then mostly hold.
    pub repeating: PathBuf,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Most tokens of a sequence.
    pub context: usize,
    /// Whether it has experts, between which rounding may decide.
    pub experts: bool,
}

/// Writes the specs of `model`, one that [`store`] makes up, to `targets`, and its weights below `out`.
///
/// # Panics
/// If there is no such model, or a directory is not writable.
pub fn served(model: &str, targets: &Path, out: &Path) -> Served {
    let stored = store(model, "bf16", Compute::F16, targets, &out.join("random"));
    let repeating = out.join("repeating");
    std::fs::create_dir_all(&repeating).expect("it is writable");
    let file = "model.safetensors";
    std::fs::copy(stored.weights.join(file), repeating.join(file)).expect("it is writable");
    repeat(&repeating);
    for weights in [&stored.weights, &repeating] {
        write_tokenizer(tokens(stored.vocabulary), weights);
    }
    let (vocabulary, context, experts) = (stored.vocabulary, stored.context, stored.experts);
    Served { name: stored.name, random: stored.weights, repeating, vocabulary, context, experts }
}

/// Printable characters, then words of three letters: any text can be said, and every id has one of its own.
fn tokens(vocabulary: usize) -> serde_json::Map<String, serde_json::Value> {
    // The last two are what a byte-level tokenizer calls the space and the end of a line.
    let characters = ('!'..='~').chain(['Ġ', 'Ċ']).map(String::from);
    let letters = || 'a'..='z';
    let words = letters()
        .flat_map(|a| letters().flat_map(move |b| letters().map(move |c| [a, b, c].iter().collect())));
    let all = characters.chain(words).take(vocabulary);
    all.enumerate().map(|(id, token)| (token, id.into())).collect()
}

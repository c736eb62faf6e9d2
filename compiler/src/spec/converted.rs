//! What a converter has changed of tensors besides their names: keys of `[checkpoint]` that may be left out.

use super::diagnostic::Source;
use super::reader::{At, Table};
use super::types::{Decay, Mixer, Model, NormWeight, OnePlusNorms, ValueHeads};

/// What is said of it, where something is.
pub(super) struct ReadConverted {
    pub(super) value_heads: Option<At<ValueHeads>>,
    pub(super) one_plus_norms: Option<At<OnePlusNorms>>,
    pub(super) decay: Option<At<Decay>>,
}

/// Reads the keys; `None` if a value was invalid and has been reported.
pub(super) fn read(table: &mut Table) -> Option<ReadConverted> {
    let heads = [("grouped", ValueHeads::Grouped), ("tiled", ValueHeads::Tiled)];
    let norms = [("as-model", OnePlusNorms::AsModel), ("one-added", OnePlusNorms::OneAdded)];
    let decays = [("logarithm", Decay::Logarithm), ("negative-rate", Decay::NegativeRate)];
    let value_heads = choice(table, "value_heads", &heads);
    let one_plus_norms = choice(table, "one_plus_norms", &norms);
    let decay = choice(table, "decay", &decays);
    Some(ReadConverted { value_heads: value_heads?, one_plus_norms: one_plus_norms?, decay: decay? })
}

/// The inner `None` means that the key is not there.
fn choice<T: Copy>(table: &mut Table, key: &str, choices: &[(&str, T)]) -> Option<Option<At<T>>> {
    table.optional(key).map_or(Some(None), |value| value.choice(choices).map(Some))
}

/// What is said, or what goes without saying.
pub(super) fn value<T: Default>(said: Option<At<T>>) -> T {
    said.map_or_else(T::default, |said| said.value)
}

/// Checks that the model has what is said to be changed.
pub(super) fn check(source: &Source, read: &ReadConverted, model: &Model) {
    let decays = model.mixers.values().any(|mixer| mixer.decays());
    let shares = model.mixers.values().any(|mixer| matches!(mixer, Mixer::DeltaNet(_)));
    let adds_one = model.norm.weight == NormWeight::OnePlus;
    let delta = "no mixer of the model is a delta-net";
    let kept = "no mixer of the model has a state that decays";
    let norm = "the `norm` of the model is not `one-plus`";
    report(source, "value_heads", read.value_heads.as_ref(), shares, delta);
    report(source, "one_plus_norms", read.one_plus_norms.as_ref(), adds_one, norm);
    report(source, "decay", read.decay.as_ref(), decays, kept);
}

fn report<T: Default + PartialEq>(source: &Source, key: &str, said: Option<&At<T>>, has: bool, why: &str) {
    if let Some(said) = said.filter(|said| said.value != T::default() && !has) {
        let message = format!("`checkpoint.{key}` does not apply: {why}");
        let help = "leave it out".to_owned();
        source.report(said.span.clone(), &format!("checkpoint.{key}"), message, "applies to nothing", help);
    }
}

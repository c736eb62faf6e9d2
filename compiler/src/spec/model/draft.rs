//! Reads `[draft.mtp]` of MODEL.toml.

use super::layer_kind;
use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table, Value, list};
use crate::spec::types::*;

/// Reads `[draft]`: the layers of its one known method, as in a pattern.
pub(super) fn read(mut table: Table) -> Option<At<Vec<At<String>>>> {
    let mtp = table.required("mtp", "mtp = { layers = [\"attention\"] }").and_then(Value::table);
    table.finish();
    let mut mtp = mtp?;
    let layers = mtp.required("layers", "layers = [\"attention\"]");
    let layers = layers.and_then(|it| it.list(Value::string));
    mtp.finish();
    layers
}

/// Checks that the layers are made of the model's blocks, each of them once, and that one attends.
pub(super) fn check(
    source: &Source,
    layers: &At<Vec<At<String>>>,
    mixers: &[(At<String>, Mixer)],
    others: &[(At<String>, Ffn)],
    ffn: Option<&Ffn>,
) -> bool {
    let key = "draft.mtp.layers";
    let kinds: Vec<LayerKind> = layers.value.iter().map(|layer| layer_kind(&layer.value)).collect();
    let mixer_of = |kind: &LayerKind| mixers.iter().find(|(name, _)| name.value == kind.mixer);
    let fits = |mixer: &Mixer| mixer.kv().is_some() || !mixer.mixes();
    let mut holds = true;
    for (layer, kind) in layers.value.iter().zip(&kinds) {
        if !mixer_of(kind).is_some_and(|(_, mixer)| fits(mixer)) {
            let message = format!("`{key}` names {:?}, which is no mixer of a draft head", kind.mixer);
            // A rejected draft is rolled back, which works for keys and values but not for a recurrent state.
            let known: Vec<&str> =
                mixers.iter().filter(|(_, mixer)| fits(mixer)).map(|(name, _)| name.value.as_str()).collect();
            let help = match &known[..] {
                [] => "a draft head needs a mixer of the kind `attention`".to_owned(),
                names => format!("those are {}", list(names.iter())),
            };
            source.report(layer.span.clone(), key, message, "no such mixer", help);
            holds = false;
        }
        let unknown = |block: &&String| !others.iter().any(|(name, _)| name.value == **block);
        if let Some(block) = kind.ffn.as_ref().filter(unknown) {
            let message = format!("`{key}` names {block:?}, which is no `[other_ffn.{block}]`");
            let help = "after the stroke stands what follows the mixer instead of `[ffn]`".to_owned();
            source.report(layer.span.clone(), key, message, "no such block", help);
            holds = false;
        }
    }
    if !holds {
        return false;
    }
    let attends = |kind: &LayerKind| mixer_of(kind).is_some_and(|(_, mixer)| mixer.kv().is_some());
    let follows = |kind: &LayerKind| match &kind.ffn {
        None => ffn.is_some_and(Ffn::follows),
        Some(block) => others.iter().any(|(name, ffn)| name.value == *block && ffn.follows()),
    };
    let count = |holds: &dyn Fn(&LayerKind) -> bool| kinds.iter().filter(|kind| holds(kind)).count();
    let (attend, follow) = (count(&attends), count(&follows));
    let idle = count(&|kind| !attends(kind) && !follows(kind));
    if attend != 1 || follow > 1 || idle > 0 {
        let message = format!(
            "of `{key}`, {attend} attend, {follow} have a block after their mixer and {idle} have neither"
        );
        let help = "one attends and at most one has a block: their tensors' names have no number of a layer";
        source.report(layers.span.clone(), key, message, "its layers", help.to_owned());
        return false;
    }
    true
}

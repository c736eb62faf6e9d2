//! Reads `[draft.mtp]` of MODEL.toml.

use super::layer_kind;
use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table, Value, list};
use crate::spec::types::*;

/// Reads `[draft]`: the layer kind of its one known method, as in a pattern.
pub(super) fn read(mut table: Table) -> Option<At<String>> {
    let mtp = table.required("mtp", "mtp = { layer = \"attention\" }").and_then(Value::table);
    table.finish();
    let mut mtp = mtp?;
    let layer = mtp.required("layer", "layer = \"attention\"").and_then(Value::string);
    mtp.finish();
    layer
}

/// Checks that the layer is one of the model's kinds and has attention.
pub(super) fn check(
    source: &Source,
    layer: &At<String>,
    mixers: &[(At<String>, Mixer)],
    others: &[(At<String>, Ffn)],
) -> bool {
    let key = "draft.mtp.layer";
    let kind = layer_kind(&layer.value);
    let attends = mixers.iter().filter(|(_, mixer)| mixer.kv().is_some());
    let attends: Vec<&str> = attends.map(|(name, _)| name.value.as_str()).collect();
    let mixer = attends.contains(&kind.mixer.as_str());
    if !mixer {
        let message = format!("`{key}` names {:?}, which is no mixer that attends", kind.mixer);
        // A rejected draft is rolled back, which works for keys and values but not for a recurrent state.
        let help = match &attends[..] {
            [] => "a draft head needs a mixer of the kind `attention`".to_owned(),
            names => format!("those are {}", list(names.iter())),
        };
        source.report(layer.span.clone(), key, message, "no attention", help);
    }
    let block = kind.ffn.filter(|block| !others.iter().any(|(name, _)| name.value == *block));
    if let Some(block) = &block {
        let message = format!("`{key}` names {block:?}, which is no `[other_ffn.{block}]`");
        let help = "after the stroke stands what follows the mixer instead of `[ffn]`".to_owned();
        source.report(layer.span.clone(), key, message, "no such block", help);
    }
    mixer && block.is_none()
}

//! Writes a draft as a readable MODEL.toml.

use super::Origin;
use super::draft::{Draft, DraftHead, Layer};
use super::seen::Seen;
use crate::spec::types::Ffn;
use crate::spec::words;

pub(super) fn write(draft: &Draft, name: &str, origin: Origin, seen: &Seen) -> String {
    let Origin { maker, file } = origin;
    let Draft { family, hidden, layers, vocabulary, context, tied, stop_ids, .. } = draft;
    let mut comment = format!("# {name}: imported from a {maker} {file} of the {family} family.\n");
    if !draft.defaulted.is_empty() {
        let keys = draft.defaulted.join(", ");
        comment += &format!("# Not in the config, so as transformers has it: {keys}.\n");
    }
    for note in &draft.notes {
        comment += &format!("# {note}\n");
    }
    let names = |layers: &[Layer]| {
        layers.iter().map(|layer| format!("{:?}", layer.name())).collect::<Vec<_>>().join(", ")
    };
    let pattern = names(&draft.pattern);
    let repeats = if draft.pattern.len() == 1 { " # in every layer" } else { "" };
    let (norm, around) = (words::norm(draft.norm), words::around(draft.around));
    let of_draft = if draft.head == DraftHead::Present { draft.naming.draft.layers } else { &[] };
    let there = |name| draft.pattern.iter().chain(of_draft).any(|layer| layer.mixer == name);
    let mixers = draft.mixers.iter().filter(|(name, _)| there(*name));
    let mixers: String = mixers
        .map(|(name, mixer)| {
            let table = format!("mixer.{name}");
            format!("\n[{table}]\nkind = {:?}\n{}", mixer.kind(), mixer.write(&table))
        })
        .collect();
    let ffn = |ffn: &Ffn| format!("kind = {:?}\n{}", ffn.kind(), ffn.write());
    let other = |(name, block): &(&str, Ffn)| {
        format!("\n# What follows the mixer in layers that say so.\n[other_ffn.{name}]\n{}", ffn(block))
    };
    let head = match of_draft {
        [] => String::new(),
        layers => format!("\n[draft.mtp]\nlayers = [{}] # its own, one after the other\n", names(layers)),
    };
    let format = |(key, name): (&str, Option<&str>)| {
        name.map_or(String::new(), |name| format!("{key} = {name:?} # by the tags in its chat template\n"))
    };
    let formats: String =
        [("tools", seen.tools), ("reasoning", seen.reasoning)].into_iter().map(format).collect();
    let (ffn, others) = (ffn(&draft.ffn), draft.others.iter().map(other).collect::<String>());
    format!(
        "\
{comment}
[model]
hidden = {hidden}
layers = {layers}
vocabulary = {vocabulary}
context = {context}
tied = {tied} # whether the head is the embedding
norm = {norm}
{around}pattern = [{pattern}]{repeats}
{mixers}
[ffn]
{ffn}{others}{head}
# The chat template is the checkpoint's own.
[protocol]
stop_ids = {stop_ids:?}
{formats}
# A {file} recommends nothing: put the makers' parameters here.
[[sampling]]
name = \"default\"
temperature = 1.0
"
    )
}

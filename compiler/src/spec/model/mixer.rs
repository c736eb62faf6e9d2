//! Reads `[mixer.*]` of MODEL.toml.

use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table, list};
use crate::spec::types::*;

pub(super) fn mixers(source: &Source, mut table: Table) -> Option<Vec<(At<String>, Mixer)>> {
    let span = table.span();
    let mut mixers = Vec::new();
    let mut sound = true;
    for (name, value) in table.entries() {
        let path = value.path().to_owned();
        let reserved = ["embed", "head"].contains(&name.value.as_str());
        // The name becomes a function of the emitted stack.
        if reserved || name.value.starts_with('_') || syn::parse_str::<syn::Ident>(&name.value).is_err() {
            let message = format!("a mixer cannot be called {:?}", name.value);
            let help = "a Rust identifier that is no keyword, neither `embed` nor `head`".to_owned();
            source.report(name.span.clone(), &path, message, "this name", help);
            sound = false;
        }
        match value.table().and_then(|table| mixer(source, table)) {
            Some(mixer) => mixers.push((name, mixer)),
            None => sound = false,
        }
    }
    if sound && mixers.is_empty() {
        let help = "add `[mixer.attention]`".to_owned();
        source.report(span, "mixer", "there is no mixer".to_owned(), "empty", help);
        return None;
    }
    sound.then_some(mixers)
}

fn mixer(source: &Source, mut table: Table) -> Option<Mixer> {
    let read = table.required("kind", "kind = \"attention\"").and_then(|it| it.choice(Mixer::KINDS))?.value;
    read(source, table)
}

/// Reports heads that cannot be divided evenly.
pub(crate) fn divides(
    source: &Source,
    table: &Table,
    (few_key, few): (&str, &Option<At<usize>>),
    many: &Option<At<usize>>,
    heads: &str,
    serves: &str,
) {
    let (Some(few), Some(many)) = (few, many) else { return };
    if many.value % few.value == 0 {
        return;
    }
    let key = table.key(few_key);
    let message = format!("`{key}` = {} does not divide the {} {heads}", few.value, many.value);
    let divisors: Vec<_> = (1..=many.value).filter(|it| many.value % it == 0).take(16).collect();
    let help = format!("every {serves} serves equally many {heads}: one of {}", list(divisors.iter()));
    let mistake = source.mistake(few.span.clone(), &key, message, "does not divide", help);
    source.sink.push(mistake.also(many.span.clone(), &format!("the {heads}")));
}

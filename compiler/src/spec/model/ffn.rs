//! Reads `[ffn]` and `[other_ffn.*]` of MODEL.toml.

use crate::spec::diagnostic::Source;
use crate::spec::reader::{At, Table};
use crate::spec::types::*;

/// Reads `[ffn]`.
pub(super) fn ffn(source: &Source, mut table: Table) -> Option<Ffn> {
    let read = table.required("kind", "kind = \"gated\"").and_then(|it| it.choice(Ffn::KINDS))?.value;
    read(source, table)
}

/// Reads `[other_ffn.*]`.
pub(super) fn others(source: &Source, mut table: Table) -> Option<Vec<(At<String>, Ffn)>> {
    let mut blocks = Vec::new();
    let mut sound = true;
    for (name, value) in table.entries() {
        let path = value.path().to_owned();
        // The name becomes part of a function's name.
        if !name.value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            let message = format!("a block cannot be called {:?}", name.value);
            let help = "lower-case letters, digits and underscores".to_owned();
            source.report(name.span.clone(), &path, message, "this name", help);
            sound = false;
        }
        match value.table().and_then(|table| ffn(source, table)) {
            Some(block) => blocks.push((name, block)),
            None => sound = false,
        }
    }
    sound.then_some(blocks)
}

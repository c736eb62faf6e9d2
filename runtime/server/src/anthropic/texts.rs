//! Blocks of text.

use crate::error::ApiError;
use crate::request::fields::{text_of, text_schema};
use serde_json::Value;

/// Separator between two texts of one message: Anthropic's clients add texts of their own.
pub(super) const BETWEEN: &str = "\n";

/// What clients send with a text, and what changes no answer.
const OF_TEXTS: [&str; 2] = ["cache_control", "citations"];

/// The schema of a block.
pub(super) fn schema() -> Value {
    text_schema(&["text"], &OF_TEXTS)
}

/// The texts of blocks of an array at this path, joined.
pub(super) fn texts_of(path: &str, blocks: &[Value]) -> Result<String, ApiError> {
    let read = |(at, block)| read_text(&format!("{path}[{at}]"), block);
    Ok(blocks.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?.join(BETWEEN))
}

/// The text of a block.
pub(super) fn read_text<'a>(path: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    text_of(path, block, &["text"], &OF_TEXTS, "blocks")
}

//! The input of chat templates.

use serde_json::{Map, Value};

/// A conversation to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// The messages as sent by clients: objects with `role`, `content` and any other members that a template
    /// reads.
    pub messages: &'a [Value],
    /// Whether to end with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables of the template: `tools`, `documents`, `enable_thinking` and the like.
    pub extra: &'a Map<String, Value>,
}

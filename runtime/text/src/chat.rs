//! What a chat template is given.

use serde_json::{Map, Value};

/// A conversation to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// The messages as clients send them: objects with `role`, `content` and what else a template looks at.
    pub messages: &'a [Value],
    /// Whether the text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables of the template: `tools`, `documents`, `enable_thinking` and the like.
    pub extra: &'a Map<String, Value>,
}

//! The input of chat templates.

use serde_json::{Map, Value};

/// Where a rendered conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatEnd {
    /// Behind its last message.
    Message,
    /// Where an answer to it begins.
    Answer,
    /// Behind the content of its last message, which the answer goes on with.
    Content,
}

/// A conversation to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// The messages as sent by clients: objects with `role`, `content` and any other members that a template
    /// reads.
    pub messages: &'a [Value],
    /// Where it ends.
    pub end: ChatEnd,
    /// Further variables of the template: `tools`, `documents`, `enable_thinking` and the like.
    pub extra: &'a Map<String, Value>,
}

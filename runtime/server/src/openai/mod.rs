//! OpenAI's wire format: requests read strictly, answers written.

pub(crate) mod answers;
pub(crate) mod chat;
pub(crate) mod completions;
mod logprobs;
pub(crate) mod messages;
pub(crate) mod responses;
pub(crate) mod tokens;

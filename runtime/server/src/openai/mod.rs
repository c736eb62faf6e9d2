//! OpenAI's wire format: requests read strictly, answers written.

pub(crate) mod answers;
pub(crate) mod biases;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod fields;
pub(crate) mod format;
pub(crate) mod generation;
mod logprobs;
pub(crate) mod messages;
pub(crate) mod responses;
pub(crate) mod tokens;
pub(crate) mod tools;

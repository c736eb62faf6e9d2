//! Anthropic's wire format: requests read strictly, answers and errors written.

pub(crate) mod answers;
mod document;
pub(crate) mod editing;
pub(crate) mod errors;
pub(crate) mod messages;
pub(crate) mod request;
mod texts;
pub(crate) mod thinking;
pub(crate) mod tools;

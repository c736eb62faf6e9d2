//! OpenAI's responses: requests read, answers written, and kept for those that go on from them.

pub(crate) mod answers;
pub(crate) mod items;
pub(crate) mod request;
pub(crate) mod store;

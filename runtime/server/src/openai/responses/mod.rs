//! OpenAI's responses: requests read, answers written, and stored for requests that continue them.

pub(crate) mod answers;
pub(crate) mod items;
pub(crate) mod request;
pub(crate) mod store;

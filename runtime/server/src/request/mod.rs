//! Requests, as all vendors' APIs share them: the fields of a body, the conversation, what is sampled, and
//! what an answer is constrained to.

pub(crate) mod biases;
pub(crate) mod calls;
pub(crate) mod conversation;
pub(crate) mod described;
pub(crate) mod fields;
pub(crate) mod format;
pub(crate) mod generation;
pub(crate) mod grammars;
pub(crate) mod limits;
pub(crate) mod reasoning;
pub(crate) mod text;
pub(crate) mod tools;

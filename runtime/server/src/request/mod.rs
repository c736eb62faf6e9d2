//! Requests as all vendors' APIs share them: fields of a body, conversation, sampling and constraints.

pub(crate) mod biases;
pub(crate) mod calls;
pub(crate) mod compaction;
pub(crate) mod conversation;
pub(crate) mod defaults;
pub(crate) mod described;
pub(crate) mod editing;
pub(crate) mod fields;
pub(crate) mod format;
pub(crate) mod forms;
pub(crate) mod generation;
pub(crate) mod grammars;
pub(crate) mod images;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod reasoning;
pub(crate) mod routers;
pub(crate) mod text;
pub(crate) mod tools;

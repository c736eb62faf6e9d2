//! Numbers of fields and buffers.

/// Index into [`Structure::fields`](super::Structure::fields).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldId(pub usize);

/// Index into [`Structure::buffers`](super::Structure::buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

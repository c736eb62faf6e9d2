//! What ranks of several processes exchange values through: NCCL, opened when a server starts.

mod communicator;
mod library;

pub(crate) use communicator::{Communicator, wait};
pub(crate) use library::Library;

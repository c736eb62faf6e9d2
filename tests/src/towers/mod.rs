//! What tests of vision towers, and of models that take images, share.

pub mod checkpoint;
pub mod draft_head;
pub mod imported;
pub mod questions;
pub mod stacks;

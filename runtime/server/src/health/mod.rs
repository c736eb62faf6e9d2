//! Whether the server is ready for requests, checked rather than assumed: `readiness` decides, `canary` sends
//! the engine a prompt whose answer is known.

pub(crate) mod canary;
mod readiness;

pub(crate) use readiness::{Readiness, Signs, StepLimit};

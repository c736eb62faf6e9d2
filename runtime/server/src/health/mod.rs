//! Whether the server may be sent requests, found out rather than remembered: `readiness` decides, `canary`
//! asks the engine a question whose answer is known.

pub(crate) mod canary;
mod readiness;

pub(crate) use readiness::{Readiness, Signs, StepLimit};

//! One model on several processes, on one host or several: a head, which serves, and workers, which carry out
//! what it says.
//!
//! The protocol is two machines without input or output, [`Head`] and [`Worker`]: they are told what happened
//! and when, and say what to do. [`Slots`] keeps on both sides what each slot was fed last, so that a step
//! carries only what is new and a row that does not follow is refused. What is around them carries their
//! decisions out over TCP.

mod call;
mod codec;
mod deadlines;
mod duties;
mod ended;
mod follow;
mod frame;
mod gate;
mod head;
mod hello;
mod hub;
mod lead;
mod meet;
mod message;
mod offload;
mod options;
mod slots;
mod token;
mod wire;
mod worker;

pub use call::{
    Answer, Call, Feed, Mask, Place, Row, RowAnswer, Run, SampledBy, SamplingBits, StepCall, Want,
};
pub use codec::{decode, encode};
pub use deadlines::Deadlines;
pub use duties::{Duties, Share};
pub use ended::Ended;
pub use follow::follow;
pub use gate::{Door, Visitor};
pub use head::{Head, MOST_STEPS};
pub use hello::{Hello, PROTOCOL, Room};
pub use hub::{Loaded, OnEnd, Say};
pub use lead::Lead;
pub use message::{Done, Effect, Message, Stage, Task};
pub use options::{MOST_RANKS, Options};
pub use slots::{Limits, Slots};
pub use token::{Nonce, Proof, Said, Side, Token, nonce};
pub use wire::Malformed;
pub use worker::Worker;

//! The engine: requests in, sampled tokens out, many sequences in one batched step.
//!
//! One thread, the forward thread, owns the model and all sequences; everybody else holds an
//! [`EngineHandle`], which knows nothing of the model's type. The cut inside:
//!
//! * [`scheduler`]: what the next step runs, decided on plain values;
//! * `sequence`: one generation in flight;
//! * `forward`: the loop that carries decisions out;
//! * `handle` and `generation`: the other side of the channel;
//! * `shared` and `latencies`: what both sides see, for whoever asks how the engine does.
//!
//! With a model that takes two steps in flight the host runs one step behind the device: the next step is planned
//! and submitted while one runs, before its tokens are known here. Whoever's answer ends in the step that runs has
//! one surplus row in the next: its token is dropped, and its blocks and slot come back after that step.
//!
//! A model that drafts verifies drafts in the step that decodes: a step then gives a sequence one token or several, and the
//! engine feeds the drafts that came with them next. What to feed is known when a step is collected, so one is in flight.
//!
//! What a request is answered depends on its prompt, its sampling parameters and its seed alone: batching,
//! chunked prefill, pre-emption and drafts change when a token is computed, never which.

mod forward;
mod generation;
mod handle;
mod latencies;
mod request;
pub mod scheduler;
#[cfg(feature = "scripted")]
pub mod scripted;
mod sequence;
mod shared;

pub use generation::Generation;
pub use handle::{
    EngineHandle, EngineOptions, FarShare, PrefixOptions, SNAPSHOT_INTERVAL, ScheduleOptions, StartError,
    TBT, start,
};
pub use latencies::Latencies;
pub use request::{EngineError, Event, FinishReason, Finished, Request, SubmitError, Timings};
pub use scheduler::Policy;
pub use shared::{Health, Stats};

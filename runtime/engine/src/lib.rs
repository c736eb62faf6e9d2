//! The engine: requests in, sampled tokens out, many sequences in one batched step.
//!
//! One thread, the forward thread, owns the model and all sequences; everybody else holds an
//! [`EngineHandle`], which knows nothing of the model's type. The cut inside:
//!
//! * [`scheduler`]: what the next step runs, decided on plain values;
//! * `sequence`: one generation in flight, with what it is sampled by, drafted from and constrained to;
//! * `forward`: the loop that carries decisions out;
//! * `handle` and `generation`: the other side of the channel;
//! * `shared` and `latencies`: what both sides see, for whoever asks how the engine does.
//!
//! With a model that takes two steps in flight the host runs one step behind the device: the next step is
//! planned and submitted while one runs, before its tokens are known here. Whoever's answer ends in the step
//! that runs has one surplus row in the next: its token is dropped, and its blocks and slot come back after
//! that step.
//!
//! A model that verifies drafts does so in the step that decodes: a step then gives a sequence one token or
//! several. Where the model drafts itself, the engine feeds what came with them next; where it does not, what
//! it looks up, to those sequences that it finds something for. What to feed is known when a step is
//! collected, so one is in flight.
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
mod swap;

pub use generation::Generation;
pub use handle::{
    EngineHandle, EngineOptions, FarShare, PrefixOptions, SNAPSHOT_INTERVAL, ScheduleOptions, StartError,
    TBT, start,
};
pub use latencies::Latencies;
pub use request::{EngineError, Event, FinishReason, Finished, Request, SubmitError, Timings};
pub use scheduler::Policy;
pub use sequence::{LONGEST_NGRAM, LookupOptions};
pub use shared::{Health, Stats, SwapStats};
pub use swap::{SwapDisk, SwapOptions};

//! The engine: requests in, sampled tokens out, many sequences in one batched step.
//!
//! One thread, the forward thread, owns the model and all sequences. Everything else holds an
//! [`EngineHandle`], which does not depend on the model's type. The modules:
//!
//! * [`scheduler`]: what the next step runs, decided on plain values;
//! * `sequence`: one generation in flight, with what it is sampled by, drafted from and constrained to;
//! * `forward`: the loop that carries decisions out;
//! * `handle` and `generation`: the other side of the channel;
//! * `shared` and `latencies`: health, counters and histograms, which both sides see.
//!
//! With two steps in flight the host runs one step behind the device: it plans and submits the next step
//! while one runs, before the tokens of that one are known. A sequence whose answer ends in the running step
//! has a discarded row in the next: its token is dropped, and its blocks and slot come back after that step.
//!
//! A model that verifies drafts does so in the decode step, which then gives a sequence one token or several.
//! The drafts come from the model, with the tokens of the step before, or from the engine, by n-gram lookup,
//! for those sequences in which it finds a match. They are known only when a step is collected, so one step
//! is in flight.
//!
//! The answer to a request depends only on its prompt, its sampling parameters and its seed: batching,
//! chunked prefill, pre-emption and drafts change when a token is computed, never which.

mod forward;
mod generation;
mod handle;
mod images;
mod keep;
mod latencies;
mod options;
mod request;
pub mod scheduler;
#[cfg(feature = "scripted")]
pub mod scripted;
mod sequence;
mod shared;
mod swap;

pub use generation::Generation;
pub use handle::{EngineHandle, StartError, start};
pub use images::{PromptImage, PromptImages};
pub use keep::KeepOptions;
pub use latencies::Latencies;
pub use options::{
    EngineOptions, OffloadShare, PrefixOptions, SNAPSHOT_INTERVAL, ScheduleOptions, SlidingPool, TBT,
};
pub use request::{EngineError, Event, FinishReason, Finished, Request, SubmitError, Timings};
pub use scheduler::Policy;
pub use sequence::{LONGEST_NGRAM, LookupOptions};
pub use shared::{Health, KeptStats, Stats, SwapStats};
pub use swap::{SwapDisk, SwapOptions};

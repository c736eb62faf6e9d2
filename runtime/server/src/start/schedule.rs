//! The scheduler's flags, and how its options are reported.

use monomorph_engine::{Policy, ScheduleOptions};
use monomorph_model::ModelSpec;
use serde_json::{Value, json};
use std::num::NonZero;
use std::time::Duration;

/// How sequences share steps.
#[derive(Clone, Debug, clap::Args)]
pub struct ScheduleArgs {
    /// Which requests go first that have one priority and whose clients were served alike: those that came
    /// first (fifo), or those with the shortest prompts (slai), which also feeds prompts in smaller parts
    /// where an answer's next token would come late otherwise.
    #[arg(long, value_name = "fifo|slai", value_enum, default_value_t = Schedule::Fifo)]
    pub schedule: Schedule,
    /// Milliseconds from one token of an answer to the next that slai keeps, where it can, and behind which a
    /// token is counted as late.
    #[arg(long, value_name = "MS", default_value_t = NonZero::<u64>::MIN.saturating_add(99))]
    pub tbt_ms: NonZero<u64>,
    /// Most tokens of prompts in a step, beside those of answers; at most what a step holds, which `info`
    /// prints; 0 is as many as there is room for.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prefill_tokens: usize,
}

/// The policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Schedule {
    /// First in, first out.
    Fifo,
    /// The shortest prompt first, with deadlines.
    Slai,
}

impl ScheduleArgs {
    /// The engine's options.
    ///
    /// # Errors
    /// When steps of this build cannot carry so many tokens of prompts.
    pub(crate) fn options(&self, spec: &ModelSpec) -> Result<ScheduleOptions, String> {
        let policy = match self.schedule {
            Schedule::Fifo => Policy::Fifo,
            Schedule::Slai => Policy::Slai,
        };
        let (tbt, prefill_tokens) = (Duration::from_millis(self.tbt_ms.get()), self.prefill_tokens);
        let options = ScheduleOptions { policy, tbt, prefill_tokens };
        options.check(spec).map_err(|error| format!("--prefill-tokens {prefill_tokens}: {error}"))?;
        Ok(options)
    }
}

/// As `/health` has it.
pub(crate) fn facts(options: &ScheduleOptions) -> Value {
    let ScheduleOptions { policy, tbt, prefill_tokens } = options;
    let prefill_tokens = (*prefill_tokens > 0).then_some(prefill_tokens);
    json!({"policy": policy.name(), "tbt_ms": tbt.as_millis() as u64, "prefill_tokens": prefill_tokens})
}

/// In words, where they differ from the default.
pub(crate) fn describe(options: &ScheduleOptions) -> String {
    let ScheduleOptions { policy, tbt, prefill_tokens } = options;
    let mut said = match policy {
        Policy::Fifo => String::new(),
        Policy::Slai => format!("; slai, a token every {} ms", tbt.as_millis()),
    };
    if *prefill_tokens > 0 {
        said.push_str(&format!("; at most {prefill_tokens} tokens of prompts a step"));
    }
    said
}

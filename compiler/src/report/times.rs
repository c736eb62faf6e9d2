//! Times of phases that a profiling build took, as its verb `profile --json` prints them.

use crate::plan::Plan;
use serde::Deserialize;
use serde_json::{Value, json};

/// What `profile --json` prints, as far as the page shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Times {
    /// Name of the target.
    target: String,
    /// `barriers` or `events`.
    clock: String,
    steps: Vec<TimedStep>,
}

#[derive(Clone, Debug, Deserialize)]
struct TimedStep {
    sequences: Option<usize>,
    context: Option<f64>,
    prompt_tokens: Option<usize>,
    step_microseconds: f64,
    phases_microseconds: f64,
    predicted_microseconds: f64,
    phases: Vec<TimedPhase>,
}

#[derive(Clone, Debug, Deserialize)]
struct TimedPhase {
    body: String,
    phase: String,
    times: usize,
    microseconds: f64,
    microseconds_each: f64,
    bytes: f64,
    gb_per_second: f64,
    of_limit: f64,
    predicted_microseconds: f64,
}

impl Times {
    /// Reads what was printed.
    ///
    /// # Errors
    /// When it is not of this plan's target, or not what `profile --json` prints.
    pub fn read(text: &str, plan: &Plan) -> Result<Times, String> {
        let times: Times = serde_json::from_str(text)
            .map_err(|error| format!("not what `server profile --json` prints: {error}"))?;
        let (found, expected) = (&times.target, plan.target.name());
        if *found != expected {
            return Err(format!("times of {found}, and the page is of {expected}"));
        }
        Ok(times)
    }

    /// The tables of the page, which says bytes as `size` does.
    pub(super) fn tables(&self, size: fn(f64) -> String) -> Vec<Value> {
        self.steps.iter().map(|step| self.table(step, size)).collect()
    }

    fn table(&self, step: &TimedStep, size: fn(f64) -> String) -> Value {
        let title = match (step.prompt_tokens, step.sequences) {
            (Some(tokens), _) => format!("a prompt of {tokens} tokens"),
            (None, Some(1) | None) => format!("a token after {:.0}", step.context.unwrap_or_default()),
            (None, Some(sequences)) => {
                format!(
                    "a token each of {sequences} sequences, after {:.0}",
                    step.context.unwrap_or_default()
                )
            }
        };
        let how = match self.clock.as_str() {
            "events" => "Launches alone, one by one in one stream: their sum is more than a step's.",
            _ => "From one barrier between phases to the next.",
        };
        let words = format!(
            "{:.1} us in all phases, {:.1} predicted; a step takes {:.1} us. {how}",
            step.phases_microseconds, step.predicted_microseconds, step.step_microseconds
        );
        let phases = step.phases.iter().map(|it| {
            json!({
                "name": format!("{}.{}", it.body, it.phase), "times": it.times,
                "each": format!("{:.2}", it.microseconds_each), "all": format!("{:.1}", it.microseconds),
                "bytes": size(it.bytes), "rate": format!("{:.1}", it.gb_per_second),
                "share": format!("{:.0} %", 100.0 * it.of_limit),
                "predicted": format!("{:.1}", it.predicted_microseconds),
            })
        });
        json!({"title": title, "words": words, "phases": phases.collect::<Vec<_>>()})
    }
}

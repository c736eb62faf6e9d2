//! What `bench` prints.

use crate::process::out;
use crate::start::batches;
use crate::start::draft;
use crate::verbs::seeing::{Answers, Seen, Times};
use monomorph_model::ModelSpec;
use serde_json::{Value, json};

/// Something measured several times.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Of how many: tokens of a prompt, sequences or streams.
    pub(crate) count: usize,
    /// Tokens per second, of all together.
    pub(crate) rates: Vec<f64>,
    /// Milliseconds a step, where steps are the model's alone.
    pub(crate) steps: Vec<f64>,
    /// Tokens sampled by the rows that verified drafts, or could have.
    pub(crate) sampled: usize,
    /// How many such rows there were.
    pub(crate) rows: usize,
}

impl Measured {
    /// Drafts accepted a row that verifies some, in the mean; `None` where nothing is drafted.
    fn mean_accepted(&self, spec: &ModelSpec) -> Option<f64> {
        let verified = (self.rows * spec.drafts()) as u64;
        draft::mean_accepted(spec, verified, self.sampled.saturating_sub(self.rows) as u64)
    }

    fn json(&self, name: &str, spec: &ModelSpec) -> Value {
        let mut value =
            json!({name: self.count, "tokens_per_second": median(&self.rates), "samples": self.rates});
        if !self.steps.is_empty() {
            value["step_ms"] = median(&self.steps).into();
        }
        if let Some(mean) = self.mean_accepted(spec) {
            value["mean_accepted"] = mean.into();
        }
        value
    }
}

/// What was measured, and when it began in seconds since the process was started.
pub(crate) struct Report<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) depth: usize,
    pub(crate) generate: usize,
    pub(crate) threads: usize,
    pub(crate) dummy: bool,
    pub(crate) loaded: f64,
    pub(crate) first_token: f64,
    /// By tokens; the first is that which the plan's figures stand beside.
    pub(crate) prefills: Vec<Measured>,
    /// By sequences.
    pub(crate) batches: Vec<Measured>,
    pub(crate) streams: Vec<Measured>,
    pub(crate) images: Vec<Seen>,
}

impl Report<'_> {
    /// The rates of one sequence, if they were measured.
    fn decode(&self) -> &[f64] {
        self.batches.iter().find(|batch| batch.count == 1).map_or(&[], |batch| &batch.rates)
    }

    /// The rates of the first prompt.
    fn prefill(&self) -> &[f64] {
        self.prefills.first().map_or(&[], |prefill| &prefill.rates)
    }

    /// As one object.
    pub(crate) fn json(&self) -> Value {
        let figures = &self.spec.figures;
        let all = |name: &str, measured: &[Measured]| -> Vec<Value> {
            measured.iter().map(|one| one.json(name, self.spec)).collect()
        };
        json!({
            "target": self.spec.target,
            "weights": if self.dummy { "dummy" } else { "checkpoint" },
            "draft": draft::facts(self.spec),
            "batch_invariant": batches::facts(self.spec),
            "threads": self.threads,
            "prompt_tokens": self.prefills.first().map(|prefill| prefill.count),
            "depth": self.depth,
            "generate": self.generate,
            "start_to_ready_ms": self.loaded * 1e3,
            "start_to_first_token_ms": self.first_token * 1e3,
            "ours": {"prefill": median(self.prefill()), "decode": median(self.decode())},
            "limit": {"prefill": figures.limit_prefill, "decode": figures.limit_decode},
            "predicted": {"prefill": figures.predicted_prefill, "decode": figures.predicted_decode},
            "samples": {"prefill": self.prefill(), "decode": self.decode()},
            "prefills": all("tokens", &self.prefills),
            "batches": all("sequences", &self.batches),
            "streams": all("streams", &self.streams),
            "images": self.images.iter().map(seen).collect::<Vec<_>>(),
        })
    }

    /// As lines.
    pub(crate) fn print(&self) {
        let figures = &self.spec.figures;
        let weights = if self.dummy { ", weights: dummy" } else { "" };
        out::print(format_args!(
            "{}, {} threads{weights}, tokens per second",
            self.spec.target, self.threads
        ));
        if let Some(it) = &self.spec.draft {
            out::print(format_args!("{}", draft::describe(self.spec, it)));
        }
        if let Some(it) = &self.spec.batch_invariant {
            out::print(format_args!("batches: {}", batches::describe(self.spec, it)));
        }
        out::print(format_args!(
            "{:<28} {:>10} {:>10} {:>10} {:>9}",
            "", "measured", "predicted", "limit", "of limit"
        ));
        let line = |name: String, rates: &[f64], predicted: f64, limit: f64| {
            let rate = median(rates);
            let share = 100.0 * rate / limit;
            out::print(format_args!("{name:<28} {rate:>10.1} {predicted:>10.1} {limit:>10.1} {share:>8.0}%"));
        };
        let rate = |name: String, one: &Measured, rest: String| {
            out::print(format_args!("{name:<28} {:>10.1}{rest}", median(&one.rates)));
        };
        for (place, prefill) in self.prefills.iter().enumerate() {
            let name = format!("prefill of {}", prefill.count);
            // The figures are of the prompt that is measured by default.
            if place == 0 {
                line(name, &prefill.rates, figures.predicted_prefill, figures.limit_prefill);
            } else {
                rate(name, prefill, String::new());
            }
        }
        for batch in &self.batches {
            let steps = format!("   {:.3} ms a step{}", median(&batch.steps), self.accepted(batch));
            if batch.count > 1 {
                rate(format!("the same, batch {}", batch.count), batch, steps);
                continue;
            }
            let name = format!("decode of {} after {}", self.generate, self.depth);
            line(name, &batch.rates, figures.predicted_decode, figures.limit_decode);
            if self.spec.drafts() > 0 {
                out::print(format_args!("{:<39}{steps}", ""));
            }
        }
        for streams in &self.streams {
            let name = format!("{} streams, all together", streams.count);
            rate(name, streams, self.accepted(streams));
        }
        for Seen { size, image, passes, answers } in &self.images {
            let (patches, tokens) = (image.patches().grid.patches(), image.tokens());
            out::print(format_args!(
                "{:<28} {:>10.3} ms for {patches} patches, {tokens} tokens",
                format!("tower, {size}"),
                median(&passes[0])
            ));
            for (Answers { count, tokens, images, text }, passes) in answers.iter().zip(passes) {
                out::print(format_args!(
                    "{:<28} {:>10.3} ms in the tower, {:.3} to the first token, then {:.3}; {:.3} and {:.3} of text as long",
                    format!("{count} of them, {tokens} tokens"),
                    median(passes),
                    median(&images.first),
                    median(&images.each),
                    median(&text.first),
                    median(&text.each)
                ));
            }
        }
        let [loaded, first] = [self.loaded, self.first_token].map(|seconds| seconds * 1e3);
        out::print(format_args!(
            "{:<28} {loaded:>10.0} ms, first token after {first:.0} ms",
            "start to ready"
        ));
    }

    fn accepted(&self, one: &Measured) -> String {
        let drafts = self.spec.drafts();
        one.mean_accepted(self.spec)
            .map_or(String::new(), |mean| format!("   {mean:.2} of {drafts} drafts accepted a step"))
    }
}

/// Images of one size.
fn seen(seen: &Seen) -> Value {
    let times = |times: &Times| json!({"first_token_ms": median(&times.first), "token_ms": median(&times.each), "samples": times.first});
    let answers = seen.answers.iter().zip(&seen.passes);
    let answers = answers.map(|(Answers { count, tokens, images, text }, passes)| {
        json!({"images": count, "tokens": tokens, "tower_ms": median(passes), "with_images": times(images), "text": times(text)})
    });
    json!({
        "size": seen.size.to_string(),
        "patches": seen.image.patches().grid.patches(),
        "tokens": seen.image.tokens(),
        "tower_ms": median(&seen.passes[0]),
        "samples": seen.passes[0],
        "answers": answers.collect::<Vec<_>>(),
    })
}

/// The middle of some samples, or the mean of the two in the middle; 0 of none.
pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Drafting, Shape, Small};

    #[test]
    fn median_of_few() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn accepted_drafts_are_the_tokens_beyond_one_a_row() {
        let measured = Measured { sampled: 25, rows: 10, ..Measured::default() };
        assert_eq!(measured.mean_accepted(Drafting::<Small, 2>::SPEC), Some(1.5));
        assert_eq!(measured.mean_accepted(Small::SPEC), None);
    }
}

//! What `profile` prints.

use super::Taken;
use crate::process::out;
use monomorph_model::{
    ModelSpec, PhaseClock, ProfileSpec, ProfiledKind, ProfiledPhase, ProfiledStep, TimedRow,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// All that was timed.
pub(super) struct Report<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) profile: &'static ProfileSpec,
    pub(super) threads: usize,
    pub(super) dummy: bool,
    pub(super) steps: Vec<Profiled>,
}

/// A step and the times of its phases.
#[derive(Debug)]
pub(super) struct Profiled {
    profile: &'static ProfileSpec,
    step: &'static ProfiledStep,
    taken: Taken,
}

/// Microseconds of a step, or of some of it.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    measured: f64,
    bytes: f64,
    limit: f64,
    predicted: f64,
}

impl std::ops::Add for Figures {
    type Output = Figures;

    fn add(self, other: Figures) -> Figures {
        Figures {
            measured: self.measured + other.measured,
            bytes: self.bytes + other.bytes,
            limit: self.limit + other.limit,
            predicted: self.predicted + other.predicted,
        }
    }
}

impl Figures {
    /// 1e9 bytes a second.
    fn rate(&self) -> f64 {
        if self.measured > 0.0 { 1e-3 * self.bytes / self.measured } else { 0.0 }
    }

    /// The limit's part of what was measured.
    fn of_limit(&self) -> f64 {
        if self.measured > 0.0 { self.limit / self.measured } else { 0.0 }
    }
}

impl Profiled {
    /// # Errors
    /// When what was timed is not what the plan says that the step runs.
    pub(super) fn of(
        profile: &'static ProfileSpec,
        step: &'static ProfiledStep,
        taken: Taken,
    ) -> Result<Profiled, String> {
        let profiled = Profiled { profile, step, taken };
        let expected = |phase: &ProfiledPhase| (phase.times * profiled.taken.steps) as u64;
        for phase in step.phases {
            for row in phase.rows {
                let (count, expected) = (profiled.row(*row).count, expected(phase));
                if count != expected {
                    return Err(format!(
                        "{} of {}.{} was timed {count} times, and the plan says {expected}",
                        profile.names[*row], phase.body, phase.name
                    ));
                }
            }
        }
        let known: BTreeSet<usize> = step.phases.iter().flat_map(|phase| phase.rows).copied().collect();
        let timed = profiled.taken.rows.iter().enumerate().filter(|(_, row)| row.count > 0);
        match timed.map(|(at, _)| at).find(|at| !known.contains(at)) {
            Some(row) => Err(format!("{} was timed, and is not of this step's plan", profile.names[row])),
            None => Ok(profiled),
        }
    }

    fn row(&self, row: usize) -> TimedRow {
        self.taken.rows.get(row).copied().unwrap_or_default()
    }

    /// Microseconds of a row in a step.
    fn microseconds(&self, row: usize) -> f64 {
        1e6 * self.row(row).seconds / self.taken.steps as f64
    }

    fn figures(&self, phase: &ProfiledPhase) -> Figures {
        let (times, context, bandwidth) = (phase.times as f64, self.taken.context, self.profile.bandwidth);
        Figures {
            measured: phase.rows.iter().map(|row| self.microseconds(*row)).sum(),
            bytes: times * phase.work.bytes_after(context),
            limit: 1e6 * times * phase.work.limit(context, bandwidth),
            predicted: 1e6 * times * phase.work.predicted(context, bandwidth),
        }
    }

    /// Microseconds of a step whose phases are timed.
    fn timed_step(&self) -> f64 {
        1e6 * self.taken.timed / self.taken.steps as f64
    }

    fn total(&self) -> Figures {
        self.step.phases.iter().map(|phase| self.figures(phase)).fold(Figures::default(), |sum, it| sum + it)
    }

    fn json(&self) -> Value {
        let phase = |phase: &ProfiledPhase| {
            let figures = self.figures(phase);
            let launches = phase.rows.iter().map(
                |row| json!({"kernel": self.profile.names[*row], "microseconds": self.microseconds(*row)}),
            );
            let mut value = json!({
                "body": phase.body,
                "phase": phase.name,
                "kind": phase.kind,
                "times": phase.times,
                "microseconds": figures.measured,
                "microseconds_each": figures.measured / phase.times as f64,
                "bytes": figures.bytes,
                "gb_per_second": figures.rate(),
                "limit_microseconds": figures.limit,
                "of_limit": figures.of_limit(),
                "predicted_microseconds": figures.predicted,
            });
            if self.profile.clock == PhaseClock::Events {
                value["launches"] = launches.collect();
            }
            value
        };
        let total = self.total();
        let mut value = json!({
            "step_microseconds": 1e6 * self.taken.step(),
            "timed_step_microseconds": self.timed_step(),
            "timed_steps": self.taken.steps,
            "phases_microseconds": total.measured,
            "bytes": total.bytes,
            "limit_microseconds": total.limit,
            "predicted_microseconds": total.predicted,
            "phases": self.step.phases.iter().map(phase).collect::<Vec<_>>(),
        });
        match self.step.kind {
            ProfiledKind::Decode(sequences) => {
                (value["sequences"], value["context"]) = (sequences.into(), self.taken.context.into());
            }
            ProfiledKind::Prompt(tokens) => value["prompt_tokens"] = tokens.into(),
        }
        value
    }

    fn print(&self) {
        let what = match self.step.kind {
            ProfiledKind::Decode(1) => format!("a token after {:.0}", self.taken.context),
            ProfiledKind::Decode(sequences) => {
                format!("a token each of {sequences} sequences, after {:.0}", self.taken.context)
            }
            ProfiledKind::Prompt(tokens) => format!("a prompt of {tokens} tokens"),
        };
        out::print(format_args!("\n{what}"));
        out::print(format_args!(
            "{:<34} {:>5} {:>9} {:>10} {:>13} {:>8} {:>8} {:>10}",
            "phase", "times", "us each", "us", "bytes", "GB/s", "of limit", "predicted"
        ));
        let line = |name: &str, times: String, each: String, it: Figures, behind: &str| {
            let (rate, share) = (it.rate(), 100.0 * it.of_limit());
            let Figures { measured, bytes, predicted, .. } = it;
            out::print(format_args!(
                "{name:<34} {times:>5} {each:>9} {measured:>10.1} {bytes:>13.0} {rate:>8.1} {share:>6.0} % {predicted:>10.1}{behind}"
            ));
        };
        for phase in self.step.phases {
            let (figures, times) = (self.figures(phase), phase.times);
            let kernel = match (self.profile.clock, phase.rows) {
                (PhaseClock::Events, [row]) => format!("  {}", self.profile.names[*row]),
                _ => String::new(),
            };
            let each = figures.measured / times as f64;
            line(
                &format!("{}.{}", phase.body, phase.name),
                times.to_string(),
                format!("{each:.2}"),
                figures,
                &kernel,
            );
            for row in phase.rows.iter().filter(|_| phase.rows.len() > 1) {
                let (name, took) = (self.profile.names[*row], self.microseconds(*row));
                let each = took / times as f64;
                out::print(format_args!("    {name:<30} {times:>5} {each:>9.2} {took:>10.1}"));
            }
        }
        let total = self.total();
        line("all phases", String::new(), String::new(), total, "");
        let (plain, timed) = (1e6 * self.taken.step(), self.timed_step());
        let share = 100.0 * total.measured / timed;
        out::print(format_args!(
            "a step takes {plain:.1} us; while its phases are timed {timed:.1}, of which they are {share:.0} %"
        ));
    }
}

impl Report<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "target": self.spec.target,
            "weights": if self.dummy { "dummy" } else { "checkpoint" },
            "threads": self.threads,
            "clock": match self.profile.clock {
                PhaseClock::Barriers => "barriers",
                PhaseClock::Events => "events",
            },
            "bandwidth": self.profile.bandwidth,
            "steps": self.steps.iter().map(Profiled::json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn print(&self) {
        let weights = if self.dummy { ", weights: dummy" } else { "" };
        out::print(format_args!("{}, {} threads{weights}", self.spec.target, self.threads));
        out::print(format_args!(
            "{}",
            match self.profile.clock {
                PhaseClock::Barriers => {
                    "times of the first thread, from one barrier between phases to the next; in a step there are besides: \
                 rotary angles, sampling, its start and end"
                }
                PhaseClock::Events => {
                    "times of launches alone, one by one in one stream, each between two events: in a step kernels begin \
                 before those in front of them end and may run beside others, so that the sum is more than a step's"
                }
            }
        ));
        self.steps.iter().for_each(Profiled::print);
    }
}

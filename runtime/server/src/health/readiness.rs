//! Readiness from the engine's signs: a pure decision.

use super::canary::TOKENS;
use monomorph_engine::{Health, Stats};
use monomorph_model::ModelSpec;
use std::time::Duration;

/// Least time before a step counts as hanging: a probe within two seconds of a hang must see it.
const LEAST_STEP_LIMIT: Duration = Duration::from_millis(1500);
/// How many times longer than expected a step may take: the machine is shared, and contexts grow.
const TOLERANCE: u32 = 4;

/// How long a step may take before it counts as hanging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepLimit {
    /// As configured.
    Fixed(Duration),
    /// At least so long, and longer after longer steps.
    Learned(Duration),
}

impl StepLimit {
    /// From what the plan predicts for the largest step of an empty cache.
    pub(crate) fn predicted(spec: &ModelSpec) -> StepLimit {
        let predicted = spec.step_tokens as f64 / spec.figures.predicted_prefill;
        // Without predictions the number is not finite.
        let predicted = Duration::try_from_secs_f64(predicted).unwrap_or_default();
        StepLimit::Learned(predicted.saturating_mul(TOLERANCE).max(LEAST_STEP_LIMIT))
    }

    /// The limit for an engine whose long steps have taken `long_step`.
    fn get(self, long_step: Duration) -> Duration {
        match self {
            StepLimit::Fixed(limit) => limit,
            StepLimit::Learned(least) => least.max(long_step.saturating_mul(TOLERANCE)),
        }
    }
}

/// What readiness depends on.
#[derive(Clone, Debug)]
pub(crate) struct Signs {
    /// The engine's own health.
    pub(crate) health: Health,
    /// Time since its thread last made progress; `None` while it sleeps.
    pub(crate) in_turn: Option<Duration>,
    /// Whether it has requests.
    pub(crate) busy: bool,
    /// How long a canary has been pending; `None` when none is.
    pub(crate) unanswered: Option<Duration>,
    /// How long a step may take.
    pub(crate) step_limit: Duration,
}

impl Signs {
    /// Signs of an engine at one moment.
    pub(crate) fn of(health: Health, stats: &Stats, unanswered: Option<Duration>, limit: StepLimit) -> Signs {
        let busy = stats.running + stats.waiting > 0;
        let step_limit = limit.get(stats.long_step);
        Signs { health, in_turn: stats.in_turn, busy, unanswered, step_limit }
    }

    /// The verdict.
    pub(crate) fn read(self) -> Readiness {
        match self.health {
            Health::Stopped => return Readiness::Stopped,
            Health::Poisoned(cause) => return Readiness::Poisoned(cause),
            Health::Dead(cause) => return Readiness::Dead(cause),
            Health::Running | Health::Draining => {}
        }
        if let Some(taken) = self.in_turn.filter(|&taken| taken >= self.step_limit) {
            let (taken, limit) = (taken.as_secs_f64(), self.step_limit.as_secs_f64());
            return Readiness::Hung(format!("a step has taken {taken:.1} s, and {limit:.1} s are allowed"));
        }
        // An idle engine answers a canary at once. Why this one does not, though no step hangs, is not known.
        let patience = self.step_limit * TOKENS as u32;
        if let Some(asked) = self.unanswered.filter(|&asked| !self.busy && asked >= patience) {
            let asked = asked.as_secs_f64();
            return Readiness::Hung(format!("an idle engine has not answered a canary for {asked:.1} s"));
        }
        if self.health == Health::Draining { Readiness::Draining } else { Readiness::Ready }
    }
}

/// Whether a request would be answered, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// A request would be answered.
    Ready,
    /// The model is still being loaded.
    Loading,
    /// The server is shutting down.
    Draining,
    /// The server has shut down.
    Stopped,
    /// A step hangs; it may still come back.
    Hung(String),
    /// Answers are wrong.
    Poisoned(String),
    /// The engine failed.
    Dead(String),
}

impl Readiness {
    /// Whether a request would be answered.
    pub(crate) fn is_ready(&self) -> bool {
        *self == Readiness::Ready
    }

    /// Whether the process is alive. A hanging step may come back: how many failed probes in a row mean a
    /// restart is the orchestrator's decision.
    pub(crate) fn is_live(&self) -> bool {
        self.cause().is_none()
    }

    /// The state in one word.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Readiness::Ready => "ok",
            Readiness::Loading => "loading",
            Readiness::Draining => "draining",
            Readiness::Stopped => "stopped",
            Readiness::Hung(_) => "hung",
            Readiness::Poisoned(_) => "poisoned",
            Readiness::Dead(_) => "dead",
        }
    }

    /// The reason, if a request would not be answered.
    pub(crate) fn cause(&self) -> Option<&str> {
        match self {
            Readiness::Hung(cause) | Readiness::Poisoned(cause) | Readiness::Dead(cause) => Some(cause),
            Readiness::Ready | Readiness::Loading | Readiness::Draining | Readiness::Stopped => None,
        }
    }

    /// Every word that [`Readiness::status`] may be.
    pub(crate) const STATUSES: [&str; 7] =
        ["ok", "loading", "draining", "stopped", "hung", "poisoned", "dead"];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(change: impl FnOnce(&mut Signs)) -> (&'static str, bool) {
        let mut signs = Signs {
            health: Health::Running,
            in_turn: None,
            busy: false,
            unanswered: None,
            step_limit: Duration::from_secs(2),
        };
        change(&mut signs);
        let verdict = signs.read();
        assert!(Readiness::STATUSES.contains(&verdict.status()));
        (verdict.status(), verdict.is_live())
    }

    /// Steps of a long prompt on a small machine were taken for hanging ones while the limit was the
    /// prediction's alone.
    #[test]
    fn a_limit_that_nobody_set_follows_what_steps_take() {
        let [short, long] = [Duration::from_millis(2), Duration::from_secs(1)];
        assert_eq!(StepLimit::Learned(LEAST_STEP_LIMIT).get(short), LEAST_STEP_LIMIT);
        assert_eq!(StepLimit::Learned(LEAST_STEP_LIMIT).get(long), Duration::from_secs(4));
        assert_eq!(StepLimit::Fixed(long).get(long), long);
    }

    #[test]
    fn every_sign_counts() {
        let seconds = Duration::from_secs;
        assert_eq!(status(|_| {}), ("ok", true));
        assert_eq!(status(|signs| signs.in_turn = Some(seconds(1))), ("ok", true));
        assert_eq!(status(|signs| signs.in_turn = Some(seconds(2))), ("hung", false));
        assert_eq!(status(|signs| signs.health = Health::Draining), ("draining", true));
        assert_eq!(status(|signs| signs.health = Health::Stopped), ("stopped", true));
        assert_eq!(status(|signs| signs.health = Health::Dead(String::new())), ("dead", false));
        assert_eq!(status(|signs| signs.health = Health::Poisoned(String::new())), ("poisoned", false));
        // A drain that hangs is told from one that goes on.
        let hangs = |signs: &mut Signs| (signs.health, signs.in_turn) = (Health::Draining, Some(seconds(3)));
        assert_eq!(status(hangs), ("hung", false));
        assert_eq!(status(|signs| signs.unanswered = Some(seconds(7))), ("ok", true));
        assert_eq!(status(|signs| signs.unanswered = Some(seconds(8))), ("hung", false));
        // Others may be served before a canary.
        let waits = |signs: &mut Signs| (signs.unanswered, signs.busy) = (Some(seconds(60)), true);
        assert_eq!(status(waits), ("ok", true));
    }
}

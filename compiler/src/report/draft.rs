//! What a build drafts, and what it should gain by that.

use crate::plan::Plan;
use crate::spec::types::Drafting;
use serde::Serialize;

/// Parts of the drafts that hold where those before them do, for which the gain is told.
const ACCEPTANCES: [f64; 3] = [0.6, 0.8, 1.0];

/// How a build drafts.
#[derive(Debug, Serialize)]
pub struct DraftReport {
    /// With what.
    pub method: &'static str,
    /// Tokens after every one sampled.
    pub drafts: usize,
    /// Ids that can be drafted: those below it.
    pub vocabulary: usize,
    /// The rate at which drafts are accepted whatever was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_acceptance: Option<f64>,
    /// Bodies that a step runs behind the model's, in order.
    pub passes: Vec<String>,
    /// Bytes that a step of one sequence moves.
    pub bytes: f64,
    /// What it should take.
    pub microseconds: f64,
    /// What it gives.
    pub gains: Vec<GainReport>,
}

/// What a step gives where so many drafts hold.
#[derive(Debug, Serialize)]
pub struct GainReport {
    /// Part of the drafts that hold where those before them do.
    pub acceptance: f64,
    /// Tokens a step.
    pub tokens: f64,
    /// Tokens a second at the hardware's limits.
    pub limit: f64,
    /// Tokens a second as the phases add up.
    pub predicted: f64,
}

/// Collects the report; `None` for a build that does not draft.
pub fn report(plan: &Plan) -> Option<DraftReport> {
    let (draft, Drafting { drafts, vocabulary, forced_acceptance }) = plan.draft.zip(plan.target.draft)?;
    let step = draft.prediction;
    let gain = |acceptance: f64| {
        let tokens = step.tokens(acceptance);
        GainReport { acceptance, tokens, limit: tokens / step.floor, predicted: tokens / step.step }
    };
    Some(DraftReport {
        method: Drafting::METHOD,
        drafts,
        vocabulary,
        forced_acceptance,
        passes: draft.schedule().into_iter().map(|body| plan.bodies[body.0].name.clone()).collect(),
        bytes: step.bytes,
        microseconds: 1e6 * step.step,
        gains: ACCEPTANCES.into_iter().map(gain).collect(),
    })
}

/// The report as lines.
pub fn text(report: &DraftReport) -> Vec<String> {
    let DraftReport { method, drafts, vocabulary, .. } = report;
    let mut lines =
        vec![format!("drafts: {method}, {drafts} after every token sampled, of the first {vocabulary} ids")];
    if let Some(rate) = report.forced_acceptance {
        lines.push(format!(
            "drafts are accepted at a rate of {rate} whatever was sampled: answers mean nothing"
        ));
    }
    lines.push(format!("behind the model: {}", report.passes.join(", ")));
    lines.push(format!(
        "a step of one sequence, 96 before: {:.0} bytes, {:.1} us",
        report.bytes, report.microseconds
    ));
    lines.push("drafts that hold   tokens a step      limit  predicted  tokens a second".to_owned());
    lines.extend(report.gains.iter().map(|gain| {
        format!(
            "{:>14.0} % {:>15.2} {:>10.1} {:>10.1}",
            100.0 * gain.acceptance,
            gain.tokens,
            gain.limit,
            gain.predicted
        )
    }));
    lines
}

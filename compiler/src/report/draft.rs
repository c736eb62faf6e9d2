//! Drafting of a build and its predicted gain.

use crate::plan::Plan;
use crate::spec::types::{DraftMethod, Drafting};
use serde::Serialize;

/// Acceptance rates for which the gain is reported, each given that the drafts before were accepted.
const ACCEPTANCES: [f64; 3] = [0.6, 0.8, 1.0];

/// Drafting of a build.
#[derive(Debug, Serialize)]
pub struct DraftReport {
    /// Method of drafting.
    pub method: &'static str,
    /// When drafts are made.
    pub made: Made,
    /// Drafts per step of a sequence.
    pub drafts: usize,
    /// Ids below this can be drafted.
    pub vocabulary: usize,
    /// The forced rate of acceptance, whatever was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_acceptance: Option<f64>,
    /// The drafter of blocks, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafter: Option<DrafterReport>,
    /// Bodies that a step runs after the model's, in order.
    pub passes: Vec<String>,
    /// Bytes that a step of one sequence moves.
    pub bytes: f64,
    /// Predicted time of such a step.
    pub microseconds: f64,
    /// Gain by rate of acceptance.
    pub gains: Vec<GainReport>,
}

/// A drafter of blocks.
#[derive(Debug, Serialize)]
pub struct DrafterReport {
    /// Rows of a block, the token sampled last among them.
    pub rows: usize,
    /// How many layers a row goes through.
    pub layers: usize,
    /// The longest window of its layers in positions; `None` if one of them sees all.
    pub window: Option<usize>,
    /// Layers of the model behind which it reads the residual stream.
    pub taps: Vec<usize>,
}

/// When drafts are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Made {
    /// After every sampled token.
    Always,
    /// When the engine finds some; other steps verify none.
    WhereFound,
}

/// Gain of a step at one rate of acceptance.
#[derive(Debug, Serialize)]
pub struct GainReport {
    /// Probability that a draft is accepted, given that those before it were.
    pub acceptance: f64,
    /// Tokens per step.
    pub tokens: f64,
    /// Tokens per second at the hardware's limits.
    pub limit: f64,
    /// Tokens per second by the sum of the phases.
    pub predicted: f64,
}

/// Collects the report; `None` for a build that does not draft.
pub fn report(plan: &Plan) -> Option<DraftReport> {
    let (step, draft) = plan.speculation.zip(plan.target.draft)?;
    let Drafting { method, drafts, vocabulary, forced_acceptance } = draft;
    let gain = |acceptance: f64| {
        let tokens = step.tokens(acceptance);
        GainReport { acceptance, tokens, limit: tokens / step.floor, predicted: tokens / step.step }
    };
    let of_block = plan.block.iter().flat_map(|block| block.context.iter().chain(&block.block));
    let passes = plan.draft_schedule().into_iter().chain(of_block.map(|(body, _)| *body));
    Some(DraftReport {
        method: method.name(),
        made: if method == DraftMethod::Ngram { Made::WhereFound } else { Made::Always },
        drafts,
        vocabulary,
        forced_acceptance,
        drafter: plan.target.drafter().map(|it| DrafterReport {
            rows: 1 + drafts,
            layers: it.layers.len(),
            window: it
                .layers
                .iter()
                .map(|layer| layer.window)
                .collect::<Option<Vec<_>>>()
                .and_then(|all| all.into_iter().max()),
            taps: it.taps.clone(),
        }),
        passes: passes.map(|body| plan.bodies[body.0].name.clone()).collect(),
        bytes: step.bytes,
        microseconds: 1e6 * step.step,
        gains: ACCEPTANCES.into_iter().map(gain).collect(),
    })
}

/// The report as lines.
pub fn text(report: &DraftReport) -> Vec<String> {
    let DraftReport { method, drafts, vocabulary, .. } = report;
    let when = match report.made {
        Made::Always => format!("after every token sampled, of the first {vocabulary} ids"),
        Made::WhereFound => "where the same tokens came before".to_owned(),
    };
    let mut lines = vec![format!("drafts: {method}, {drafts} {when}")];
    if let Some(rate) = report.forced_acceptance {
        lines.push(format!(
            "drafts are accepted at a rate of {rate} whatever was sampled: answers mean nothing"
        ));
    }
    if let Some(DrafterReport { rows, layers, window, taps }) = &report.drafter {
        let seen =
            window.map_or("the whole context".to_owned(), |window| format!("at most {window} positions"));
        let behind = taps.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        lines.push(format!(
            "a block of {rows} rows through {layers} layers over {seen}; the model is read behind layers {behind}"
        ));
    }
    if !report.passes.is_empty() {
        let alike = report.passes.chunk_by(|a, b| a == b);
        let named = alike.map(|it| match it.len() {
            1 => it[0].clone(),
            times => format!("{} x {times}", it[0]),
        });
        lines.push(format!("behind the model: {}", named.collect::<Vec<_>>().join(", ")));
    }
    lines.push(format!(
        "a step of one sequence that verifies, 96 before: {:.0} bytes, {:.1} us",
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

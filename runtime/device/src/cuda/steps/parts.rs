//! What a step is run as.
//!
//! Some stacks run a step in two parts: sequences that decode, by a recorded program, and after it the
//! others, as a prefill. One that verifies drafts, because programs for prompts take nothing back; it has one
//! step in flight, and where the engine makes the drafts and has none, one part. A batch-invariant one, so
//! that a token's kernels do not depend on what else the step holds. Where both parts are there, weights are
//! read once more than they might.

use monomorph_model::{Output, SequenceStep, Step};

/// The sets of the parts of a step that has two, behind its first.
const DECODED: usize = 0;
pub(super) const PROMPTS: usize = 1;

/// A part of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: Kind,
    /// The set it has.
    pub(super) flight: usize,
    /// Its sequences among those of the step; at least one.
    pub(super) rows: Vec<usize>,
}

impl Part {
    pub(super) fn sequences<'a>(&self, step: &'a Step) -> Vec<&'a SequenceStep> {
        self.rows.iter().map(|at| &step.sequences[*at]).collect()
    }
}

/// How a part is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By a recorded program, a token each.
    Decode,
    /// The same, with drafts.
    Verify,
    Prefill,
}

/// The parts of a step, one after the other, whose first set is `flight`; of a stack that runs them in `two`
/// or not, and that verifies so many `drafts`, of which it makes `drafted`.
///
/// # Panics
/// When the step has no sequences.
pub(super) fn parts(step: &Step, flight: usize, two: bool, drafts: usize, drafted: usize) -> Vec<Part> {
    let sequences = &step.sequences;
    assert!(!sequences.is_empty(), "a step without sequences");
    // Where the engine finds nothing to draft, a step is one as of a stack that verifies nothing.
    let given = drafts > drafted;
    if !two || (given && sequences.iter().all(|sequence| sequence.drafts == 0)) {
        let decodes = sequences.iter().all(|sequence| sequence.tokens.len() == 1);
        let kind = if decodes { Kind::Decode } else { Kind::Prefill };
        return vec![Part { kind, flight, rows: (0..sequences.len()).collect() }];
    }
    // Nothing but the sequence itself says which part it is of: not how many tokens there are, nor of how
    // many others.
    let decodes = |it: &SequenceStep| match (drafts, drafted) {
        (0, _) => it.generated,
        // Beside those that have drafts, who has none takes as many rows, and weights are read once.
        (_, 0) => it.tokens.len() == 1 + it.drafts && matches!(it.output, Output::Sample { .. }),
        _ => it.drafts > 0,
    };
    let (decoded, others) = (0..sequences.len()).partition(|at| decodes(&sequences[*at]));
    let kind = if drafts > 0 { Kind::Verify } else { Kind::Decode };
    let parts = [
        Part { kind, flight: flight + DECODED, rows: decoded },
        Part { kind: Kind::Prefill, flight: flight + PROMPTS, rows: others },
    ];
    parts.into_iter().filter(|part| !part.rows.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::{Slot, Tokens};

    /// A prompt's piece, one's end, a decoding sequence without drafts, and one with two.
    fn step() -> Step {
        let row = |tokens: usize, drafts: usize, generated: bool, samples: bool| SequenceStep {
            slot: Slot(0),
            position: 0,
            begins: false,
            tokens: Tokens::Known(vec![0; tokens]),
            drafts,
            generated,
            following: None,
            blocks: Vec::new(),
            output: match samples {
                true => Output::greedy(0),
                false => Output::None,
            },
        };
        let sequences = vec![
            row(4, 0, false, false),
            row(1, 0, false, true),
            row(1, 0, true, true),
            row(3, 2, true, true),
        ];
        Step { sequences, ..Step::default() }
    }

    /// The parts of a step of some of those sequences: how each is run, with which set, and which it has.
    fn found(which: &[usize], two: bool, drafts: usize, drafted: usize) -> Vec<(Kind, usize, Vec<usize>)> {
        let sequences = which.iter().map(|at| step().sequences[*at].clone()).collect();
        let step = Step { sequences, ..Step::default() };
        let parts = parts(&step, 4, two, drafts, drafted);
        parts.into_iter().map(|part| (part.kind, part.flight, part.rows)).collect()
    }

    #[test]
    fn one_part_decodes_where_every_sequence_feeds_a_token() {
        assert_eq!(found(&[2, 1], false, 0, 0), [(Kind::Decode, 4, vec![0, 1])]);
        assert_eq!(found(&[2, 0], false, 0, 0), [(Kind::Prefill, 4, vec![0, 1])]);
    }

    #[test]
    fn a_batch_invariant_stack_decodes_what_was_generated() {
        let both = [(Kind::Decode, 4, vec![1]), (Kind::Prefill, 5, vec![0, 2])];
        assert_eq!(found(&[0, 2, 1], true, 0, 0), both);
        // One token or not: the end of a prompt goes the way of all of it.
        assert_eq!(found(&[1], true, 0, 0), [(Kind::Prefill, 5, vec![0])]);
    }

    #[test]
    fn drafts_are_verified_apart_from_prompts() {
        let both = [(Kind::Verify, 4, vec![2]), (Kind::Prefill, 5, vec![0, 1])];
        assert_eq!(found(&[0, 2, 3], true, 2, 2), both);
        // Of drafts that are given, who has none goes along, and without any all are one part.
        let both = [(Kind::Verify, 4, vec![1, 2]), (Kind::Prefill, 5, vec![0])];
        assert_eq!(found(&[0, 2, 3], true, 2, 0), both);
        assert_eq!(found(&[1, 2], true, 2, 0), [(Kind::Decode, 4, vec![0, 1])]);
    }
}

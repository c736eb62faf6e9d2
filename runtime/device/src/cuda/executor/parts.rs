//! The parts that a step runs as.
//!
//! Some stacks run a step in two parts: decoding sequences, by a recorded program, followed by the others, as
//! a prefill. A stack that verifies drafts does so because prefill programs cannot roll back. It has one step
//! in flight; if the engine makes the drafts and has none, it runs one part. A batch-invariant stack does so
//! because a token's kernels must not depend on the rest of the step. A step with both parts reads the
//! weights twice.

use monomorph_model::{Output, Positions, SequenceImages, SequenceStep, SlidingTable, Step};

/// The index of each part's set in a step of two parts.
const DECODED: usize = 0;
pub(super) const PROMPTS: usize = 1;

/// The rows of a step that run together, as decode or as prefill.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StepPart {
    pub(super) kind: Kind,
    /// Index of its set.
    pub(super) flight: usize,
    /// Indices of its sequences in the step; at least one.
    pub(super) rows: Vec<usize>,
}

impl StepPart {
    pub(super) fn sequences<'a>(&self, step: &'a Step) -> Vec<&'a SequenceStep> {
        self.rows.iter().map(|at| &step.sequences[*at]).collect()
    }

    /// Their images, as far as the step has them.
    pub(super) fn images<'a>(&self, step: &'a Step) -> Vec<&'a SequenceImages> {
        self.rows.iter().filter_map(|at| step.images.get(*at)).collect()
    }

    /// Their tables of layers with a sliding window, as far as the step has them.
    pub(super) fn tables<'a>(&self, step: &'a Step) -> Vec<&'a SlidingTable> {
        self.rows.iter().filter_map(|at| step.sliding.get(*at)).collect()
    }
}

/// How a part is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By a recorded program, one token per sequence.
    Decode,
    /// By a recorded program, with drafts.
    Verify,
    Prefill,
}

/// The parts of a step, in order; the first set of the step is `flight`. The stack runs steps in `two` parts
/// or in one, and verifies `drafts`, of which it makes `drafted` itself.
///
/// # Panics
/// When the step has no sequences.
pub(super) fn parts(step: &Step, flight: usize, two: bool, drafts: usize, drafted: usize) -> Vec<StepPart> {
    let sequences = &step.sequences;
    assert!(!sequences.is_empty(), "a step without sequences");
    // If the engine found nothing to draft, the step runs as on a stack that verifies nothing.
    let given = drafts > drafted;
    // Decode programs take no rows of images.
    let sees = |it: &SequenceImages| !it.spans.is_empty() || matches!(it.positions, Positions::Grid(_));
    if !two || (given && sequences.iter().all(|sequence| sequence.drafts == 0)) {
        let decodes =
            sequences.iter().all(|sequence| sequence.tokens.len() == 1) && !step.images.iter().any(sees);
        let kind = if decodes { Kind::Decode } else { Kind::Prefill };
        return vec![StepPart { kind, flight, rows: (0..sequences.len()).collect() }];
    }
    // The choice depends on the sequence alone, not on its number of tokens or on other sequences.
    let decodes = |it: &SequenceStep| match (drafts, drafted) {
        (0, _) => it.generated,
        // A sequence without drafts takes as many rows as those with drafts, so that the weights are read
        // once.
        (_, 0) => it.tokens.len() == 1 + it.drafts && matches!(it.output, Output::Sample { .. }),
        _ => it.drafts > 0,
    };
    let (decoded, others) = (0..sequences.len())
        .partition(|at| decodes(&sequences[*at]) && !step.images.get(*at).is_some_and(sees));
    let kind = if drafts > 0 { Kind::Verify } else { Kind::Decode };
    let parts = [
        StepPart { kind, flight: flight + DECODED, rows: decoded },
        StepPart { kind: Kind::Prefill, flight: flight + PROMPTS, rows: others },
    ];
    parts.into_iter().filter(|part| !part.rows.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::{FeatureSlot, ImageSpan, Slot, Tokens};

    /// A prefill chunk, the end of a prompt, a decoding sequence without drafts, and one with two.
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

    /// The kind, set and sequences of each part of a step with these sequences.
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
    fn a_token_of_an_image_is_no_decode() {
        let one = |images: SequenceImages| {
            let sequences = vec![step().sequences[2].clone()];
            let step = Step { sequences, images: vec![images], ..Step::default() };
            parts(&step, 0, false, 0, 0)[0].kind
        };
        let span = ImageSpan { at: 0, count: 1, slot: FeatureSlot(0), first: 0 };
        let of = |spans, positions| one(SequenceImages { spans, positions, following: None });
        assert_eq!(of(Vec::new(), Positions::Shifted(-3)), Kind::Decode);
        assert_eq!(of(vec![span], Positions::Index), Kind::Prefill);
        assert_eq!(of(Vec::new(), Positions::Grid(vec![[1; 3]])), Kind::Prefill);
    }

    #[test]
    fn a_prompt_that_ends_with_a_token_of_an_image_is_not_verified() {
        let sequences = vec![step().sequences[1].clone(), step().sequences[3].clone()];
        let span = ImageSpan { at: 0, count: 1, slot: FeatureSlot(0), first: 0 };
        let images = vec![
            SequenceImages { spans: vec![span], ..SequenceImages::default() },
            SequenceImages { positions: Positions::Shifted(-3), ..SequenceImages::default() },
        ];
        let step = Step { sequences, images, ..Step::default() };
        let parts = parts(&step, 4, true, 2, 0);
        let found: Vec<_> = parts.iter().map(|part| (part.kind, part.rows.clone())).collect();
        assert_eq!(found, [(Kind::Verify, vec![1]), (Kind::Prefill, vec![0])]);
    }

    #[test]
    fn a_batch_invariant_stack_decodes_what_was_generated() {
        let both = [(Kind::Decode, 4, vec![1]), (Kind::Prefill, 5, vec![0, 2])];
        assert_eq!(found(&[0, 2, 1], true, 0, 0), both);
        // The end of a prompt is prefilled like the rest of it, even if it is one token.
        assert_eq!(found(&[1], true, 0, 0), [(Kind::Prefill, 5, vec![0])]);
    }

    #[test]
    fn drafts_are_verified_apart_from_prompts() {
        let both = [(Kind::Verify, 4, vec![2]), (Kind::Prefill, 5, vec![0, 1])];
        assert_eq!(found(&[0, 2, 3], true, 2, 2), both);
        // With drafts from the engine, sequences without drafts join those with them; without any drafts,
        // there is one part.
        let both = [(Kind::Verify, 4, vec![1, 2]), (Kind::Prefill, 5, vec![0])];
        assert_eq!(found(&[0, 2, 3], true, 2, 0), both);
        assert_eq!(found(&[1, 2], true, 2, 0), [(Kind::Decode, 4, vec![0, 1])]);
    }
}

//! Results of steps: tokens sampled from logits, or the logits themselves.

use monomorph_model::{Output, RowOutput, SequenceStep, Slot, Step, StepOutput, Ticket, Tokens};
use std::collections::VecDeque;

/// Results of the current step and of steps not collected yet, and the token sampled last for each slot.
/// `DRAFTS` is the number of drafts of a sequence that the stack verifies.
#[derive(Debug, Default)]
pub struct Outputs<const DRAFTS: usize> {
    pub(super) rows: Vec<RowOutput>,
    finished: VecDeque<(u64, StepOutput)>,
    /// By slot; `Batch::fill` bounds the slots.
    pub(super) sampled: Vec<Option<u32>>,
    steps: u64,
}

impl<const DRAFTS: usize> Outputs<DRAFTS> {
    /// Begins a step.
    pub fn begin(&mut self, step: &Step) {
        self.rows.clear();
        self.rows.extend(step.sequences.iter().map(|sequence| match sequence.output {
            // Sampled tokens replace it below.
            Output::None | Output::Sample { .. } => RowOutput::None,
            Output::Logits => RowOutput::Logits(Vec::new()),
        }));
    }

    /// Records the token sampled last for a slot.
    pub(super) fn note(&mut self, slot: Slot, id: u32) {
        note(&mut self.sampled, slot, id);
    }

    /// The token sampled last for a slot.
    pub(crate) fn sampled(&self, slot: Slot) -> Option<u32> {
        self.sampled.get(slot.0 as usize).copied().flatten()
    }

    /// Ends the step; returns its ticket.
    pub fn end(&mut self) -> Ticket {
        self.steps += 1;
        self.finished.push_back((self.steps, StepOutput { rows: std::mem::take(&mut self.rows) }));
        Ticket(self.steps)
    }

    /// Returns the results of a step.
    ///
    /// # Panics
    /// When tickets are not collected in the order in which they were handed out.
    pub fn collect(&mut self, ticket: Ticket) -> StepOutput {
        let (step, output) = self.finished.pop_front().expect("a step was submitted for every ticket");
        assert_eq!(step, ticket.0, "tickets are collected in order");
        output
    }
}

pub(super) fn note(sampled: &mut Vec<Option<u32>>, slot: Slot, id: u32) {
    let at = slot.0 as usize;
    if at >= sampled.len() {
        sampled.resize(at + 1, None);
    }
    sampled[at] = Some(id);
}

/// The drafts among a sequence's tokens.
pub(super) fn drafts(sequence: &SequenceStep) -> &[u32] {
    match &sequence.tokens {
        Tokens::Known(ids) => &ids[ids.len() - sequence.drafts..],
        Tokens::Sampled => &[],
    }
}

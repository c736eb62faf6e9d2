//! What a step hands back: tokens sampled from logits, or the logits themselves.

use super::batch::Batch;
use super::gather::each_row;
use super::rows::Rows;
use super::team::Team;
use monomorph_model::{Output, RowOutput, Step, StepOutput, Ticket};
use monomorph_sampling::{Sampled, sample};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Results of the step at hand, and of steps not collected yet.
#[derive(Debug, Default)]
pub struct Outputs {
    rows: Vec<RowOutput>,
    finished: VecDeque<(u64, StepOutput)>,
    steps: u64,
}

impl Outputs {
    /// Begins a step.
    pub fn begin(&mut self, step: &Step) {
        self.rows.clear();
        self.rows.extend(step.sequences.iter().map(|sequence| match sequence.output {
            // What is sampled takes its place below; it has exactly one row of logits.
            Output::None | Output::Sample { .. } => RowOutput::None,
            Output::Logits => RowOutput::Logits(Vec::new()),
        }));
    }

    /// Takes the logits of the batch's output rows `range`, which stand in the first rows of `logits`. The
    /// lanes sample side by side.
    pub fn take<const VOCABULARY: usize>(
        &mut self,
        team: &Team,
        step: &Step,
        batch: &Batch,
        range: Range<usize>,
        logits: &mut Rows<VOCABULARY>,
    ) {
        let owners: Vec<usize> = range.clone().map(|output| batch.sequence_of_output(output)).collect();
        let sampled: Vec<Mutex<Option<Sampled>>> = owners.iter().map(|_| Mutex::new(None)).collect();
        team.run(|lane| {
            each_row(lane, owners.len(), logits, |row, logits| {
                if let Output::Sample { sampling, draw, history } = &step.sequences[owners[row]].output {
                    let token = sample(logits, sampling, *draw, history);
                    *sampled[row].lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
                }
            });
        });
        for (row, (owner, token)) in owners.into_iter().zip(sampled).enumerate() {
            match (token.into_inner().unwrap_or_else(PoisonError::into_inner), &mut self.rows[owner]) {
                (Some(token), place) => *place = RowOutput::Sampled(token),
                (None, RowOutput::Logits(all)) => all.extend_from_slice(logits.row(row)),
                (None, RowOutput::None | RowOutput::Sampled(_)) => {}
            }
        }
    }

    /// Ends the step.
    pub fn end(&mut self) -> Ticket {
        self.steps += 1;
        self.finished.push_back((self.steps, StepOutput { rows: std::mem::take(&mut self.rows) }));
        Ticket(self.steps)
    }

    /// Hands a finished step back.
    ///
    /// # Panics
    /// When tickets are not collected in the order they were handed out.
    pub fn collect(&mut self, ticket: Ticket) -> StepOutput {
        let (step, output) = self.finished.pop_front().expect("a step was submitted for every ticket");
        assert_eq!(step, ticket.0, "tickets are collected in order");
        output
    }
}

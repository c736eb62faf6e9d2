//! From what a step produced to events, and to sequences that go on or end.

use super::flights::Row;
use super::{Forward, unbalanced};
use crate::request::{Event, Finished};
use monomorph_model::{RowOutput, StepOutput};
use std::time::Instant;

impl Forward {
    /// Books what the step collected last produced and hands it out.
    ///
    /// # Errors
    /// When the output is not what was asked for.
    pub(super) fn apply(&mut self, rows: &[Row], output: StepOutput, now: Instant) -> Result<(), String> {
        self.flights.release(&mut self.pool, &mut self.free_slots).map_err(unbalanced)?;
        let (asked, got) = (rows.len(), output.rows.len());
        if asked != got {
            return Err(format!("the model answered a step of {asked} sequences with {got} rows"));
        }
        self.places.fill(None);
        for (index, sequence) in self.running.iter().enumerate() {
            if let Some(slot) = sequence.slot {
                self.places[slot.0 as usize] = Some(index);
            }
        }
        let mut finished: Vec<(usize, Finished)> = Vec::new();
        let (mut prefilled, mut generated) = (0, 0);
        for (at, (row, output)) in rows.iter().zip(output.rows).enumerate() {
            prefilled += row.prefilled as u64;
            let sampled = match output {
                RowOutput::None if !row.samples => continue,
                RowOutput::Sampled(sampled) if row.samples => sampled,
                other => return Err(unasked(at, row.samples, &other)),
            };
            if sampled.id as usize >= self.vocabulary {
                let (id, vocabulary) = (sampled.id, self.vocabulary);
                return Err(format!("the model sampled token {id} of a vocabulary of {vocabulary}"));
            }
            // A sequence that ended while the step was in flight has no use for its token.
            let Some(index) = self.places[row.slot.0 as usize] else { continue };
            generated += 1;
            let sequence = &mut self.running[index];
            sequence.coming -= 1;
            finished.extend(sequence.push(sampled, now).map(|finished| (index, finished)));
        }
        // Rows are in the order of the running, so from the end no index moves before its turn.
        for (index, finished) in finished.into_iter().rev() {
            let mut sequence = self.running.remove(index);
            self.free(&mut sequence)?;
            self.shared.counters().stats.finished += 1;
            self.farewells.push((sequence.client, Event::Finished(finished)));
        }
        let mut counters = self.shared.counters();
        counters.stats.tokens_prefilled += prefilled;
        counters.stats.tokens_generated += generated;
        Ok(())
    }
}

/// What to say of a row that answers another question than it was asked.
fn unasked(at: usize, samples: bool, output: &RowOutput) -> String {
    let asked = if samples { "a sampled token" } else { "nothing" };
    let got = match output {
        RowOutput::None => "nothing",
        RowOutput::Sampled(_) => "a sampled token",
        RowOutput::Verified(_) => "verified drafts",
        RowOutput::Logits(_) => "logits",
    };
    format!("row {at} asked the model for {asked} and got {got}")
}

//! Applies a step's output: sends events, and continues or ends sequences.

use super::Forward;
use super::contract::{self, Expects};
use super::row::Row;
use crate::request::{EngineError, Event, Finished};
use crate::scheduler::GENERATED;
use monomorph_model::{NOT_NUMBERS, RowOutput, StepOutput, Verified};
use monomorph_sampling::{Sampled, is_finite};
use std::time::Instant;

/// Whether a row's logits are not finite. A device that samples itself reports this only through
/// log-probabilities.
fn is_poison(output: &RowOutput) -> bool {
    let of = |sampled: &Sampled| {
        let likeliest = sampled.top.first().map(|(_, logprob)| *logprob);
        likeliest.is_some_and(|likeliest| !likeliest.is_finite()) || sampled.logprob.is_some_and(f32::is_nan)
    };
    match output {
        RowOutput::Sampled(sampled) => of(sampled),
        RowOutput::Verified(verified) => verified.sampled.iter().any(of),
        RowOutput::Logits(logits) => !is_finite(logits),
        RowOutput::None | RowOutput::Lost(_) => false,
    }
}

impl Forward {
    /// Requeues sequences whose prompts are scored. They then wait like any other request and may reuse what
    /// the cache kept of them.
    ///
    /// # Errors
    /// On an accounting error.
    fn feed_anew(&mut self) -> Result<(), String> {
        for index in (0..self.batch.len()).rev() {
            if self.batch[index].is_scored() {
                let mut sequence = self.batch.remove(index);
                self.save_last(&mut sequence)?;
                sequence.end_scoring();
                self.free(&mut sequence)?;
                self.queue.push(sequence);
            }
        }
        Ok(())
    }

    /// Updates sequences from the step collected last and sends its tokens.
    ///
    /// # Errors
    /// When the output breaks the model's contract, or on an accounting error.
    pub(super) fn apply(&mut self, rows: &[Row], output: StepOutput, now: Instant) -> Result<(), String> {
        self.pipeline.release(&mut self.memory)?;
        let (asked, got) = (rows.len(), output.rows.len());
        if asked != got {
            return Err(format!("the model answered a step of {asked} sequences with {got} rows"));
        }
        self.batch.index_slots();
        let mut finished: Vec<(usize, Result<Finished, EngineError>)> = Vec::new();
        let (mut prefilled, mut chunks, mut generated) = (0, 0, 0);
        let (mut drafts, mut verified, mut accepted) = (0, 0, 0);
        let (mut prompts, mut late, mut scored, tbt) = (0, 0, false, self.planner.tbt());
        for (at, (row, output)) in rows.iter().zip(output.rows).enumerate() {
            let place = self.batch.at_slot(row.slot);
            // Canaries are not counted.
            let counts = place.is_none_or(|index| !self.batch[index].is_canary());
            late += u64::from(
                counts && place.is_some_and(|index| row.samples && self.batch[index].is_late(now, tbt)),
            );
            if counts {
                prefilled += row.prefilled as u64;
                chunks += u64::from(row.chunk);
            }
            if let (None, Some((snapshot, _))) = (place, row.save) {
                self.memory.forget(snapshot);
            }
            let output = if is_poison(&output) { RowOutput::Lost(NOT_NUMBERS.to_owned()) } else { output };
            let (taken, end) = match (self.contract.expects(row), output) {
                (expects, RowOutput::Lost(why)) if row.offloaded || expects != Expects::Nothing => {
                    finished.extend(place.map(|index| (index, Err(EngineError::Lost(why)))));
                    if let (Some(_), Some((snapshot, _))) = (place, row.save) {
                        self.memory.forget(snapshot);
                    }
                    continue;
                }
                (Expects::Nothing, RowOutput::None) => (0, None),
                (Expects::Logits(fed), RowOutput::Logits(mut logits)) => {
                    self.contract.check_logits(at, fed, &logits)?;
                    let Some(index) = place else { continue };
                    scored = true;
                    (0, self.batch[index].score(row.end - fed..row.end, &mut logits, now).map(Ok))
                }
                (Expects::Token, RowOutput::Sampled(sampled)) => {
                    self.contract.check_token(at, sampled.id)?;
                    // The sequence ended while the step was in flight; its token is discarded.
                    let Some(index) = place else { continue };
                    self.batch[index].take([sampled], Vec::new(), now)
                }
                (Expects::Verified, RowOutput::Verified(Verified { sampled, drafts: next })) => {
                    let Some(index) = place else { continue };
                    let sequence = &mut self.batch[index];
                    self.contract.check_verified(at, sequence.drafts(), &sampled, &next)?;
                    if counts {
                        drafts += u64::from(!sequence.drafts().is_empty());
                        verified += sequence.drafts().len() as u64;
                        accepted += sampled.len() as u64 - 1;
                    }
                    sequence.take(sampled, next, now)
                }
                (expects, other) => return Err(contract::unasked(at, expects, &other)),
            };
            if let Some(index) = place {
                // All sampled tokens but the last were fed as drafts.
                {
                    let done = row.end + (taken as usize).saturating_sub(1);
                    self.memory.book(row, &mut self.batch[index], done)?
                };
                if counts {
                    let sequence = &self.batch[index];
                    self.queue.serve(sequence.account, taken * GENERATED);
                    generated += taken;
                    // An answer without tokens begins when it ends.
                    let first = (taken > 0 || end.is_some()) && sequence.generated() as u64 == taken;
                    prompts += if first { sequence.prompt() as u64 } else { 0 };
                }
            }
            finished.extend(place.zip(end));
        }
        // In reverse, so that removal keeps the remaining indices valid.
        finished.sort_by_key(|(index, _)| *index);
        for (index, finished) in finished.into_iter().rev() {
            let mut sequence = self.batch.remove(index);
            let finished = match finished {
                Ok(finished) => finished,
                Err(why) => {
                    self.fail(sequence, why)?;
                    continue;
                }
            };
            self.save_last(&mut sequence)?;
            self.free(&mut sequence)?;
            self.outputs.count_end(&sequence, finished.reason, now);
            self.outputs.end(sequence.into_client(), Event::Finished(finished));
        }
        if scored {
            self.feed_anew()?;
        }
        let mut counters = self.outputs.counters();
        counters.stats.tokens_prefilled += prefilled;
        counters.stats.prefill_chunks += chunks;
        counters.stats.prompt_tokens += prompts;
        counters.stats.tokens_generated += generated;
        counters.stats.drafts += drafts;
        counters.stats.drafts_verified += verified;
        counters.stats.drafts_accepted += accepted;
        counters.stats.late_tokens += late;
        Ok(())
    }
}

//! Samples the tokens of a step from its logits, on all lanes.

use super::batch::Batch;
use super::draft::{Verify, accept};
use super::gather::each_row;
use super::outputs::{Outputs, drafts, note};
use super::rows::Rows;
use super::team::Team;
use monomorph_model::{NOT_NUMBERS, Output, RowOutput, Step, Verified};
use monomorph_sampling::{Conditions, Sampled, is_finite, sample_within, with_generated};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

impl<const DRAFTS: usize> Outputs<DRAFTS> {
    /// Takes the logits of the batch's output rows `range`, in the first rows of `logits`. The lanes sample
    /// in parallel.
    pub fn take<const VOCABULARY: usize>(
        &mut self,
        team: &Team,
        step: &Step,
        batch: &Batch,
        range: Range<usize>,
        logits: &mut Rows<VOCABULARY>,
    ) {
        let owners: Vec<usize> = range.clone().map(|output| batch.sequence_of_output(output)).collect();
        // `None` until it is sampled, or if it is not to be; `Err` if the logits are not finite.
        type Chosen = Option<Result<Sampled, NotNumbers>>;
        let sampled: Vec<Mutex<Chosen>> = owners.iter().map(|_| Mutex::new(None)).collect();
        team.run(|lane| {
            each_row(lane, owners.len(), logits, |row, logits| {
                let sequence = &step.sequences[owners[row]];
                if let Output::Sample { sampling, draw, history, biases, masks } = &sequence.output {
                    let choose = |chosen| {
                        *sampled[row].lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
                    };
                    // A sampler would skip such logits and choose among the rest.
                    if !is_finite(logits) {
                        return choose(Err(NotNumbers));
                    }
                    // Each row is sampled as if it were fed alone: after the drafts before it, at its own
                    // position in the random stream.
                    let before = range.start + row - batch.sequence_outputs(owners[row]).start;
                    let draw = draw + before as u64;
                    let longer = (before > 0 && sampling.needs_history())
                        .then(|| with_generated(history, &drafts(sequence)[..before]));
                    let conditions = Conditions {
                        history: longer.as_ref().unwrap_or(history),
                        biases: biases.get(before).map_or(&[], |biases| biases),
                        mask: masks.get(before),
                    };
                    choose(Ok(sample_within(logits, sampling, draw, &conditions)));
                }
            });
        });
        for (row, (owner, token)) in owners.into_iter().zip(sampled).enumerate() {
            match (token.into_inner().unwrap_or_else(PoisonError::into_inner), &mut self.rows[owner]) {
                // One such row loses all other rows of the sequence in this step.
                (_, RowOutput::Lost(_)) => {}
                (Some(Err(NotNumbers)), place) => *place = RowOutput::Lost(NOT_NUMBERS.to_owned()),
                (Some(Ok(token)), RowOutput::Verified(verified)) => verified.sampled.push(token),
                (Some(Ok(token)), place) if DRAFTS > 0 => {
                    *place = RowOutput::Verified(Verified { sampled: vec![token], drafts: Vec::new() });
                }
                (Some(Ok(token)), place) => {
                    note(&mut self.sampled, step.sequences[owner].slot, token.id);
                    *place = RowOutput::Sampled(token);
                }
                (None, RowOutput::Logits(all)) => all.extend_from_slice(logits.row(row)),
                (None, RowOutput::None | RowOutput::Sampled(_) | RowOutput::Verified(_)) => {}
            }
        }
    }

    /// Called after the logits of a step, on a stack whose drafts the engine makes: discards tokens sampled
    /// after rejected drafts.
    pub fn verify(&mut self, step: &Step) {
        for (sequence, row) in step.sequences.iter().zip(&mut self.rows) {
            if let RowOutput::Verified(verified) = row {
                accept::<Verify>(sequence, &mut verified.sampled);
                if let Some(last) = verified.sampled.last() {
                    note(&mut self.sampled, sequence.slot, last.id);
                }
            }
        }
    }
}

/// Replaces the token of a row whose logits are not all finite.
struct NotNumbers;

#[cfg(test)]
mod tests {
    use super::super::shape::BatchLimits;
    use super::*;
    use monomorph_model::{BlockId, SequenceStep, Slot, Tokens};

    /// One logit of a row is not finite; the sampler used to skip it, and the answer went on from garbage.
    #[test]
    fn a_row_that_is_no_number_is_lost_and_no_other() {
        let limits =
            BatchLimits { tokens: 8, sequences: 3, vocabulary: 10, context: 64, block_tokens: 16, blocks: 3 };
        let team = Team::new(2).unwrap();
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut batch, mut outputs) = (Batch::new(limits), Outputs::<0>::default());
            let row = |slot: u32| SequenceStep {
                drafts: 0,
                generated: false,
                following: None,
                begins: true,
                slot: Slot(slot),
                position: 0,
                tokens: Tokens::Known(vec![3, 4]),
                blocks: vec![BlockId(slot)],
                output: Output::greedy(0),
            };
            let step = Step { sequences: vec![row(0), row(1), row(2)], ..Step::default() };
            batch.fill(&step, &outputs);
            outputs.begin(&step);
            let mut logits = Rows::<10>::new(3);
            logits.row_mut(0)[7] = 1.0;
            logits.row_mut(1)[7] = 1.0;
            logits.row_mut(1)[3] = poison;
            logits.row_mut(2)[8] = 1.0;
            outputs.take(&team, &step, &batch, 0..3, &mut logits);
            let ticket = outputs.end();
            let rows = outputs.collect(ticket).rows;
            let id = |row: &RowOutput| match row {
                RowOutput::Sampled(sampled) => Some(sampled.id),
                RowOutput::Lost(why) if why.contains("not numbers") => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(rows.iter().map(id).collect::<Vec<_>>(), [Some(7), None, Some(8)], "{poison}");
        }
    }

    #[test]
    fn a_sampled_token_is_fed_by_slot() {
        let limits =
            BatchLimits { tokens: 8, sequences: 2, vocabulary: 10, context: 64, block_tokens: 16, blocks: 2 };
        let team = Team::new(1).unwrap();
        let (mut batch, mut outputs) = (Batch::new(limits), Outputs::<0>::default());
        let row = |slot: u32, position: usize, tokens: Tokens, output: Output| SequenceStep {
            drafts: 0,
            generated: false,
            following: None,
            begins: position == 0,
            slot: Slot(slot),
            position,
            tokens,
            blocks: vec![BlockId(slot)],
            output,
        };
        let sample = || Output::greedy(0);
        let first = Step {
            sequences: vec![
                row(1, 0, Tokens::Known(vec![3, 4]), sample()),
                row(0, 0, Tokens::Known(vec![5]), sample()),
            ],
            ..Step::default()
        };
        batch.fill(&first, &outputs);
        outputs.begin(&first);
        let mut logits = Rows::<10>::new(2);
        logits.row_mut(0)[7] = 1.0;
        logits.row_mut(1)[8] = 1.0;
        outputs.take(&team, &first, &batch, 0..2, &mut logits);
        let ticket = outputs.end();

        // Not collected yet, and only one of the two continues.
        let next = |slot: u32, position: usize| Step {
            sequences: vec![row(slot, position, Tokens::Sampled, Output::None)],
            ..Step::default()
        };
        batch.fill(&next(1, 2), &outputs);
        assert_eq!((batch.ids(), batch.positions()), (&[7][..], &[2][..]));
        outputs.begin(&next(1, 2));
        outputs.end();
        batch.fill(&next(0, 1), &outputs);
        assert_eq!(batch.ids(), [8], "a slot that sat a step out keeps its token");
        assert_eq!(outputs.collect(ticket).rows.len(), 2);
    }
}

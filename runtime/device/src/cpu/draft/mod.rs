//! What a step of a stack that drafts does behind its logits: which drafts held, and the passes of the draft head that make
//! the next (compiler/src/plan/draft.rs says which rows a pass takes).

mod accept;
mod embed;

#[cfg(feature = "forced-acceptance")]
pub use accept::Forced;
pub use accept::{Acceptance, Verify};
pub use embed::draft_embed;

use super::batch::{Batch, BatchLimits};
use super::gather::each_row;
use super::outputs::{Outputs, drafts};
use super::rows::Rows;
use super::team::Team;
use monomorph_model::{RowOutput, SequenceStep, Step};
use monomorph_sampling::{Sampled, Sampling, sample};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// The pass of a draft head at hand: its tokens as rows, and of which of them logits are wanted. `A` says which drafts hold.
#[derive(Debug)]
pub struct Drafting<A> {
    batch: Batch,
    /// One a sequence that is sampled for.
    rows: Vec<u32>,
    /// Of each of `rows`: the sequence of the step.
    owners: Vec<usize>,
    acceptance: PhantomData<A>,
}

impl<A: Acceptance> Drafting<A> {
    /// Room for steps within `limits`.
    pub fn new(limits: BatchLimits) -> Self {
        let sequences = Vec::with_capacity(limits.sequences);
        Drafting {
            batch: Batch::new(limits),
            rows: Vec::with_capacity(limits.sequences),
            owners: sequences,
            acceptance: PhantomData,
        }
    }

    /// The rows of the pass at hand. Their ids are those of the tokens that follow them.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Which of them logits are wanted of: one a sequence that is sampled for.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Behind the logits of `batch`, all of which `outputs` has sampled from: takes back what was sampled after drafts that do
    /// not hold, and prepares the first pass.
    pub fn begin<const DRAFTS: usize>(&mut self, step: &Step, batch: &Batch, outputs: &mut Outputs<DRAFTS>) {
        self.batch.begin(batch);
        self.rows.clear();
        self.owners.clear();
        for (index, (sequence, rows)) in step.sequences.iter().zip(batch.sequences()).enumerate() {
            let fed = &batch.ids()[rows.rows.clone()];
            let known = fed.len() - sequence.drafts;
            let sampled: Vec<u32> = match &mut outputs.rows[index] {
                RowOutput::Verified(verified) => {
                    accept::<A>(sequence, &mut verified.sampled);
                    verified.sampled.iter().map(|token| token.id).collect()
                }
                RowOutput::None | RowOutput::Sampled(_) | RowOutput::Logits(_) | RowOutput::Lost(_) => {
                    Vec::new()
                }
            };
            if let Some(last) = sampled.last() {
                outputs.note(sequence.slot, *last);
                self.rows.push((rows.rows.start + known + sampled.len() - 2) as u32);
                self.owners.push(index);
            }
            // What follows each row. Of the rows that nothing is known to follow, the pairs do not hold: whoever goes on from
            // there writes over them first.
            let follows =
                fed[1..known].iter().chain(&sampled).chain(&sequence.following).chain(fed.iter().rev());
            let pairs = follows.take(fed.len()).enumerate().map(|(i, id)| (rows.position + i, *id));
            self.batch.push(rows, pairs);
        }
        self.batch.end();
    }

    /// Takes the logits of the pass at hand, which stand in the first rows of `logits`: the largest of each is the next draft of
    /// its sequence. Prepares the pass that goes on from these.
    pub fn take<const VOCABULARY: usize, const DRAFTS: usize>(
        &mut self,
        team: &Team,
        batch: &Batch,
        logits: &mut Rows<VOCABULARY>,
        outputs: &mut Outputs<DRAFTS>,
    ) {
        let greedy = Sampling::default();
        let drafted: Vec<AtomicU32> = self.rows.iter().map(|_| AtomicU32::new(0)).collect();
        team.run(|lane| {
            each_row(lane, drafted.len(), logits, |row, logits| {
                drafted[row].store(sample(logits, &greedy, 0, &[]).id, Ordering::Relaxed);
            });
        });
        let behind: Vec<usize> =
            self.rows.iter().map(|row| self.batch.positions()[*row as usize] as usize + 1).collect();
        self.batch.begin(batch);
        self.rows.clear();
        for ((owner, draft), position) in self.owners.iter().zip(drafted).zip(behind) {
            let draft = draft.into_inner();
            if let RowOutput::Verified(verified) = &mut outputs.rows[*owner] {
                verified.drafts.push(draft);
            }
            self.rows.push(self.rows.len() as u32);
            self.batch.push(&batch.sequences()[*owner], std::iter::once((position, draft)));
        }
        self.batch.end();
    }
}

/// Cuts what was sampled of a sequence behind the first draft that does not hold.
pub(super) fn accept<A: Acceptance>(sequence: &SequenceStep, sampled: &mut Vec<Sampled>) {
    let first = sequence.position + sequence.tokens.len() - sequence.drafts;
    let mut held = 0;
    for (draft, token) in drafts(sequence).iter().zip(&mut *sampled) {
        if !A::holds(sequence.slot, first + held, *draft, token) {
            break;
        }
        held += 1;
    }
    sampled.truncate(held + 1);
}

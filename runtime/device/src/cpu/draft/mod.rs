//! The part of a step after its logits, on a stack that verifies drafts: acceptance, and the passes that make
//! the next drafts (compiler/src/plan/draft.rs lists the rows of each pass).

mod accept;
mod block;
mod embed;
mod hold;

#[cfg(feature = "forced-acceptance")]
pub use accept::Forced;
pub use accept::{Acceptance, Verify};
pub use block::{BlockDrafting, BlockPasses, keep_tap};
pub use embed::{draft_embed, draft_embed_images};
pub(super) use hold::accept;
use hold::{hold, last_position};

use super::batch::Batch;
use super::gather::each_row;
use super::kv_offload::KvOffload;
use super::outputs::Outputs;
use super::rows::Rows;
use super::shape::BatchLimits;
use super::team::{Lane, Team};
use monomorph_model::{RowOutput, Step};
use monomorph_sampling::{Sampling, sample};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The part of a step of stack `S` that follows its logits.
pub trait Drafts<S, const DRAFTS: usize>: Send + 'static {
    /// Room for steps within `limits`.
    fn new(limits: BatchLimits) -> Self;

    /// Accepts or rejects drafts, and makes the next ones if the stack drafts itself.
    fn follow(&mut self, step: &Step, behind: Behind<S, DRAFTS>);
}

/// A step whose tokens `outputs` has sampled.
#[derive(Debug)]
pub struct Behind<'a, S, const DRAFTS: usize> {
    pub(super) team: &'a Team,
    pub(super) offload: &'a KvOffload,
    pub(super) batch: &'a Batch,
    pub(super) stack: &'a mut S,
    pub(super) outputs: &'a mut Outputs<DRAFTS>,
}

/// A stack that does not draft itself.
impl<S, const DRAFTS: usize> Drafts<S, DRAFTS> for () {
    fn new(_: BatchLimits) -> Self {}

    fn follow(&mut self, step: &Step, behind: Behind<S, DRAFTS>) {
        if DRAFTS > 0 {
            behind.outputs.verify(step);
        }
    }
}

/// The draft passes of a stack, whose logits have `LOGITS` columns.
pub trait Passes<const LOGITS: usize>: Sync {
    /// Whether a draft head makes the drafts; its first pass takes every row of the step. Otherwise the
    /// model's own layers make them.
    const HEAD: bool;

    /// The parts of a K/V block that a pass attends to.
    const PARTS: Range<usize>;

    /// The first pass, up to the logits of `rows` of the batch.
    fn first(&self, lane: &Lane, batch: &Batch, rows: &[u32]);

    /// A later pass, which continues from the rows whose logits the previous pass computed.
    fn again(&self, lane: &Lane, batch: &Batch, rows: &[u32]) {
        self.first(lane, batch, rows);
    }

    /// The logits of the last pass.
    fn drafted(&mut self) -> &mut Rows<LOGITS>;
}

/// The current pass: its tokens as rows, and the rows that need logits. `A` accepts drafts; logits have
/// `LOGITS` columns.
#[derive(Debug)]
pub struct Drafting<A, const LOGITS: usize> {
    /// The rows of the current pass. With a draft head, a row's id is that of the following token; without,
    /// its own.
    batch: Batch,
    /// The rows that need logits: one for each sampled sequence.
    rows: Vec<u32>,
    /// The index in the step of each row's sequence.
    owners: Vec<usize>,
    acceptance: PhantomData<A>,
}

impl<S: Passes<LOGITS>, A: Acceptance, const LOGITS: usize, const DRAFTS: usize> Drafts<S, DRAFTS>
    for Drafting<A, LOGITS>
{
    fn new(limits: BatchLimits) -> Self {
        Drafting::new(limits)
    }

    fn follow(&mut self, step: &Step, behind: Behind<S, DRAFTS>) {
        let Behind { team, offload, batch, stack, outputs } = behind;
        match S::HEAD {
            true => self.begin(step, batch, outputs),
            false => self.begin_alone(step, batch, outputs),
        }
        for pass in 0..DRAFTS {
            let first = pass == 0;
            // A draft head's first pass runs for all rows (draft prefill), even if nothing is drafted.
            if self.rows.is_empty() && !(first && S::HEAD) {
                break;
            }
            offload.begin(step, &self.batch, S::PARTS);
            team.run(|lane| match first {
                true => stack.first(lane, &self.batch, &self.rows),
                false => stack.again(lane, &self.batch, &self.rows),
            });
            self.take(team, batch, stack.drafted(), outputs);
        }
    }
}

impl<A: Acceptance, const LOGITS: usize> Drafting<A, LOGITS> {
    fn new(limits: BatchLimits) -> Self {
        let sequences = Vec::with_capacity(limits.sequences);
        Drafting {
            batch: Batch::new(limits),
            rows: Vec::with_capacity(limits.sequences),
            owners: sequences,
            acceptance: PhantomData,
        }
    }

    /// Starts after the logits of `batch`, when `outputs` has sampled them: discards the tokens sampled after
    /// rejected drafts, and prepares the first pass of a draft head.
    fn begin<const DRAFTS: usize>(&mut self, step: &Step, batch: &Batch, outputs: &mut Outputs<DRAFTS>) {
        self.clear(batch);
        for (index, (sequence, rows)) in step.sequences.iter().zip(batch.sequences()).enumerate() {
            let fed = &batch.ids()[rows.rows.clone()];
            let known = fed.len() - sequence.drafts;
            let sampled = hold::<A, DRAFTS>(index, sequence, outputs);
            if !sampled.is_empty() {
                self.rows.push((rows.rows.start + known + sampled.len() - 2) as u32);
                self.owners.push(index);
            }
            // The token after each row. Where it is unknown, the pair is wrong, but the pass that continues
            // there overwrites its keys and values first.
            let follows =
                fed[1..known].iter().chain(&sampled).chain(&sequence.following).chain(fed.iter().rev());
            let pairs = follows.take(fed.len()).enumerate().map(|(i, id)| (rows.position + i, *id));
            self.batch.push(batch, rows, true, pairs);
        }
        self.batch.end();
    }

    /// As [`Self::begin`], but prepares the first pass of the model's own layers: the token sampled last for
    /// every sampled sequence, at its own position.
    fn begin_alone<const DRAFTS: usize>(
        &mut self,
        step: &Step,
        batch: &Batch,
        outputs: &mut Outputs<DRAFTS>,
    ) {
        self.clear(batch);
        for (index, (sequence, rows)) in step.sequences.iter().zip(batch.sequences()).enumerate() {
            let sampled = hold::<A, DRAFTS>(index, sequence, outputs);
            let Some(last) = sampled.last() else { continue };
            let position = last_position(sequence, rows, &sampled);
            self.rows.push(self.rows.len() as u32);
            self.owners.push(index);
            self.batch.push(batch, rows, false, std::iter::once((position, *last)));
        }
        self.batch.end();
    }

    fn clear(&mut self, batch: &Batch) {
        self.batch.begin(batch);
        self.rows.clear();
        self.owners.clear();
    }

    /// Takes the logits of the current pass, in the first rows of `logits`: the largest of each is the next
    /// draft of its sequence. Prepares the next pass, which continues from these drafts and has no rows once
    /// all drafts are made.
    fn take<const DRAFTS: usize>(
        &mut self,
        team: &Team,
        batch: &Batch,
        logits: &mut Rows<LOGITS>,
        outputs: &mut Outputs<DRAFTS>,
    ) {
        let drafted = largest(team, self.rows.len(), logits);
        let behind: Vec<usize> =
            self.rows.iter().map(|row| self.batch.positions()[*row as usize] as usize + 1).collect();
        self.batch.begin(batch);
        self.rows.clear();
        for ((owner, draft), position) in self.owners.iter().zip(drafted).zip(behind) {
            let RowOutput::Verified(verified) = &mut outputs.rows[*owner] else { continue };
            verified.drafts.push(draft);
            // Blocks end after the positions that the last pass wrote.
            if verified.drafts.len() == DRAFTS {
                continue;
            }
            self.rows.push(self.rows.len() as u32);
            let row = std::iter::once((position, draft));
            self.batch.push(batch, &batch.sequences()[*owner], false, row);
        }
        self.batch.end();
    }
}

/// The id of the largest logit of each of the first `count` rows.
fn largest<const LOGITS: usize>(team: &Team, count: usize, logits: &mut Rows<LOGITS>) -> Vec<u32> {
    let greedy = Sampling::default();
    let ids: Vec<AtomicU32> = (0..count).map(|_| AtomicU32::new(0)).collect();
    team.run(|lane| {
        each_row(lane, count, logits, |row, logits| {
            ids[row].store(sample(logits, &greedy, 0, &[]).id, Ordering::Relaxed);
        });
    });
    ids.into_iter().map(AtomicU32::into_inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::{BlockId, Output, SequenceStep, Slot, Tokens, Verified};
    use monomorph_sampling::Sampled;

    const LIMITS: BatchLimits =
        BatchLimits { tokens: 16, sequences: 5, vocabulary: 10, context: 64, block_tokens: 4, blocks: 8 };

    /// A sequence with `drafts` of its `tokens` to verify.
    fn row(slot: u32, position: usize, tokens: &[u32], drafts: usize, samples: bool) -> SequenceStep {
        let output = match samples {
            true => Output::greedy(0),
            false => Output::None,
        };
        let blocks = (position + tokens.len() + 2).div_ceil(LIMITS.block_tokens) as u32;
        SequenceStep {
            drafts,
            generated: drafts > 0,
            following: None,
            begins: position == 0,
            slot: Slot(slot),
            position,
            tokens: Tokens::Known(tokens.to_vec()),
            blocks: (0..blocks).map(BlockId).collect(),
            output,
        }
    }

    fn verified(ids: &[u32]) -> RowOutput {
        let sampled = ids.iter().map(|id| Sampled { id: *id, logprob: None, top: Vec::new() }).collect();
        RowOutput::Verified(Verified { sampled, drafts: Vec::new() })
    }

    #[test]
    fn passes_of_the_model_stand_where_the_token_sampled_last_does() {
        let team = Team::new(1).unwrap();
        // A prompt's last chunk, an earlier chunk, and sequences with two, one and no accepted drafts.
        let sequences = vec![
            row(2, 3, &[1, 2, 3], 0, true),
            row(3, 0, &[4, 4], 0, false),
            row(0, 5, &[7, 8, 6], 2, true),
            row(1, 6, &[7, 8, 9], 2, true),
            row(4, 9, &[5, 1, 2], 2, true),
        ];
        let step = Step { sequences, ..Step::default() };
        let mut batch = Batch::new(LIMITS).ahead(2);
        let mut outputs = Outputs::<2>::default();
        batch.fill(&step, &outputs);
        outputs.rows = vec![
            verified(&[9]),
            RowOutput::None,
            verified(&[8, 6, 1]),
            verified(&[8, 3, 1]),
            verified(&[4, 1, 2]),
        ];
        let mut drafting = Drafting::<Verify, 10>::new(LIMITS);
        drafting.begin_alone(&step, &batch, &mut outputs);
        // Index of each sampled sequence in the batch of passes, and in the step.
        let owners = [(0, 0), (1, 2), (2, 3), (3, 4)];
        let stand = |drafting: &Drafting<Verify, 10>, ids: [u32; 4], positions: [u32; 4]| {
            let passes = &drafting.batch;
            assert_eq!((passes.ids(), passes.positions()), (&ids[..], &positions[..]));
            assert_eq!(drafting.rows, [0, 1, 2, 3]);
            for (at, of) in owners {
                let (found, of) = (&passes.sequences()[at], &batch.sequences()[of]);
                assert_eq!((found.slot, found.rows.clone(), found.drafts), (of.slot, at..at + 1, 0));
                assert_eq!(passes.blocks_of(found).blocks, batch.blocks_of(of).blocks);
            }
        };
        stand(&drafting, [9, 1, 3, 4], [6, 8, 8, 10]);
        let mut logits = Rows::<10>::new(4);
        for row in 0..4 {
            logits.row_mut(row).fill(0.0);
            logits.row_mut(row)[row + 2] = 1.0;
        }
        drafting.take(&team, &batch, &mut logits, &mut outputs);
        stand(&drafting, [2, 3, 4, 5], [7, 9, 9, 11]);
        drafting.take(&team, &batch, &mut logits, &mut outputs);
        assert_eq!((drafting.batch.tokens(), drafting.rows.len()), (0, 0), "two drafts are all");
        for (at, of) in owners {
            let RowOutput::Verified(verified) = &outputs.rows[of] else { panic!("{:?}", outputs.rows[of]) };
            assert_eq!(verified.drafts, [at as u32 + 2; 2]);
        }
        let sampled = [2, 3, 0, 1, 4].map(|slot| outputs.sampled(Slot(slot)));
        assert_eq!(sampled, [Some(9), None, Some(1), Some(3), Some(4)]);
    }
}

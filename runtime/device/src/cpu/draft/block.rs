//! A drafter of blocks: what it keeps of a step's rows, and its pass over a block of each sequence that was
//! sampled (compiler/src/plan/block.rs lists the rows).

use super::super::batch::Batch;
use super::super::outputs::Outputs;
use super::super::rows::Rows;
use super::super::shape::BatchLimits;
use super::super::team::{Lane, Team};
use super::accept::Acceptance;
use super::hold::{hold, last_position};
use super::{Behind, Drafts, largest};
use monomorph_model::{RowOutput, Step};
use std::marker::PhantomData;
use std::ops::Range;

/// Copies the residual stream of each row of the batch to `tap` of its row of `taps`, which has them side by
/// side.
///
/// # Panics
/// When there is no such tap.
pub fn keep_tap<const HIDDEN: usize, const TAPS: usize>(
    lane: &Lane,
    batch: &Batch,
    residual: &Rows<HIDDEN>,
    taps: &Rows<TAPS>,
    tap: usize,
) {
    for row in lane.share(batch.tokens()) {
        // SAFETY: no lane writes the stream in this phase, and each row of taps belongs to one lane.
        let (from, to) = unsafe { (residual.padded(row), taps.part_mut(row, tap * HIDDEN, HIDDEN)) };
        to.copy_from_slice(&from[..HIDDEN]);
    }
    lane.barrier();
}

/// The passes of a drafter of blocks, whose logits have `LOGITS` columns.
pub trait BlockPasses<const LOGITS: usize>: Sync {
    /// The id of all rows of a block but the first.
    const MASK: u32;

    /// The parts of a K/V block that a pass over blocks attends to.
    const PARTS: Range<usize>;

    /// Most rows whose logits are computed at once.
    const SELECTED: usize;

    /// Keeps what the drafter attends to of the batch's rows, whose residual streams the forward pass left.
    fn context(&self, lane: &Lane, batch: &Batch);

    /// A pass over blocks, up to the residual stream behind the drafter's last layer.
    fn block(&self, lane: &Lane, batch: &Batch);

    /// The logits of `rows` of it.
    fn propose(&self, lane: &Lane, rows: &[u32]);

    /// The logits that [`Self::propose`] computed.
    fn drafted(&mut self) -> &mut Rows<LOGITS>;
}

/// The blocks of a step. `A` accepts drafts; logits have `LOGITS` columns.
#[derive(Debug)]
pub struct BlockDrafting<A, const LOGITS: usize> {
    /// The rows of all blocks.
    batch: Batch,
    /// The rows that draft: all but the first of each block.
    rows: Vec<u32>,
    /// The index in the step of each block's sequence.
    owners: Vec<usize>,
    acceptance: PhantomData<A>,
}

impl<S: BlockPasses<LOGITS>, A: Acceptance, const LOGITS: usize, const DRAFTS: usize> Drafts<S, DRAFTS>
    for BlockDrafting<A, LOGITS>
{
    fn new(limits: BatchLimits) -> Self {
        BlockDrafting::new(limits)
    }

    fn follow(&mut self, step: &Step, behind: Behind<S, DRAFTS>) {
        let Behind { team, offload, batch, stack, outputs } = behind;
        team.run(|lane| stack.context(lane, batch));
        self.begin(step, batch, S::MASK, outputs);
        if self.owners.is_empty() {
            return;
        }
        offload.begin(step, &self.batch, S::PARTS);
        team.run(|lane| stack.block(lane, &self.batch));
        let mut first = 0;
        while first < self.rows.len() {
            let last = self.rows.len().min(first + S::SELECTED);
            team.run(|lane| stack.propose(lane, &self.rows[first..last]));
            self.take(team, first..last, stack.drafted(), outputs);
            first = last;
        }
    }
}

impl<A: Acceptance, const LOGITS: usize> BlockDrafting<A, LOGITS> {
    fn new(limits: BatchLimits) -> Self {
        BlockDrafting {
            batch: Batch::new(limits),
            rows: Vec::with_capacity(limits.tokens),
            owners: Vec::with_capacity(limits.sequences),
            acceptance: PhantomData,
        }
    }

    /// Starts after the logits of `batch`, when `outputs` has sampled them: discards the tokens sampled after
    /// rejected drafts, and prepares a block for every sampled sequence, from the position of the token
    /// sampled last on.
    fn begin<const DRAFTS: usize>(
        &mut self,
        step: &Step,
        batch: &Batch,
        mask: u32,
        outputs: &mut Outputs<DRAFTS>,
    ) {
        self.batch.begin(batch);
        self.rows.clear();
        self.owners.clear();
        for (index, (sequence, rows)) in step.sequences.iter().zip(batch.sequences()).enumerate() {
            let sampled = hold::<A, DRAFTS>(index, sequence, outputs);
            let Some(last) = sampled.last() else { continue };
            let position = last_position(sequence, rows, &sampled);
            let first = (self.owners.len() * (1 + DRAFTS)) as u32;
            self.rows.extend(first + 1..=first + DRAFTS as u32);
            self.owners.push(index);
            let ids = std::iter::once(*last).chain(std::iter::repeat_n(mask, DRAFTS));
            let block = ids.enumerate().map(|(at, id)| (position + at, id));
            self.batch.push(batch, rows, false, block);
        }
        self.batch.end();
    }

    /// Takes the logits of rows `which` of those that draft, in the first rows of `logits`: the largest of
    /// each is a draft of its block's sequence.
    fn take<const DRAFTS: usize>(
        &mut self,
        team: &Team,
        which: Range<usize>,
        logits: &mut Rows<LOGITS>,
        outputs: &mut Outputs<DRAFTS>,
    ) {
        let drafted = largest(team, which.len(), logits);
        for (at, draft) in which.zip(drafted) {
            if let RowOutput::Verified(verified) = &mut outputs.rows[self.owners[at / DRAFTS]] {
                verified.drafts.push(draft);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::accept::Verify;
    use super::*;
    use monomorph_model::{BlockId, Output, SequenceStep, Slot, Tokens, Verified};
    use monomorph_sampling::Sampled;

    const LIMITS: BatchLimits =
        BatchLimits { tokens: 16, sequences: 5, vocabulary: 10, context: 64, block_tokens: 4, blocks: 8 };

    /// A sequence with `drafts` of its `tokens` to verify, and blocks for three positions behind them.
    fn row(slot: u32, position: usize, tokens: &[u32], drafts: usize, samples: bool) -> SequenceStep {
        let output = if samples { Output::greedy(0) } else { Output::None };
        let blocks = (position + tokens.len() + 3).div_ceil(LIMITS.block_tokens) as u32;
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

    /// Planted: rows that draft one too early.
    #[test]
    fn a_block_stands_where_the_token_sampled_last_does_and_drafts_what_is_behind() {
        let team = Team::new(1).unwrap();
        // An earlier chunk of a prompt, a last chunk, and sequences with two, one and no accepted drafts.
        let sequences = vec![
            row(3, 0, &[4, 4], 0, false),
            row(2, 3, &[1, 2, 3], 0, true),
            row(0, 5, &[7, 8, 6], 2, true),
            row(1, 6, &[7, 8, 9], 2, true),
            row(4, 9, &[5, 1, 2], 2, true),
        ];
        let step = Step { sequences, ..Step::default() };
        let mut batch = Batch::new(LIMITS).ahead(3);
        let mut outputs = Outputs::<2>::default();
        batch.fill(&step, &outputs);
        outputs.rows = vec![
            RowOutput::None,
            verified(&[9]),
            verified(&[8, 6, 1]),
            verified(&[8, 3, 1]),
            verified(&[4, 1, 2]),
        ];
        let mut drafting = BlockDrafting::<Verify, 10>::new(LIMITS);
        drafting.begin(&step, &batch, 0, &mut outputs);
        assert_eq!(drafting.batch.ids(), [9, 0, 0, 1, 0, 0, 3, 0, 0, 4, 0, 0]);
        assert_eq!(drafting.batch.positions(), [6, 7, 8, 8, 9, 10, 8, 9, 10, 10, 11, 12]);
        assert_eq!(drafting.batch.block_ends(), [8, 8, 8, 10, 10, 10, 10, 10, 10, 12, 12, 12]);
        assert_eq!(drafting.rows, [1, 2, 4, 5, 7, 8, 10, 11]);
        assert_eq!(drafting.owners, [1, 2, 3, 4]);
        for (at, owner) in drafting.owners.iter().enumerate() {
            let (found, of) = (&drafting.batch.sequences()[at], &batch.sequences()[*owner]);
            assert_eq!(drafting.batch.blocks_of(found).blocks, batch.blocks_of(of).blocks);
        }
        // Logits of five rows, then of three.
        let mut logits = Rows::<10>::new(5);
        for which in [0..5, 5..8] {
            for (row, draft) in which.clone().enumerate() {
                logits.row_mut(row).fill(0.0);
                logits.row_mut(row)[draft + 1] = 1.0;
            }
            drafting.take(&team, which, &mut logits, &mut outputs);
        }
        let drafted = [1, 2, 3, 4].map(|index| match &outputs.rows[index] {
            RowOutput::Verified(verified) => verified.drafts.clone(),
            other => panic!("{other:?}"),
        });
        assert_eq!(drafted, [[1, 2], [3, 4], [5, 6], [7, 8]]);
        let sampled = [2, 3, 0, 1, 4].map(|slot| outputs.sampled(Slot(slot)));
        assert_eq!(sampled, [Some(9), None, Some(1), Some(3), Some(4)]);
    }
}

//! Flattens a step to what the kernels index.

use super::outputs::Outputs;
use super::shape::{BatchLimits, BlockTable, Sequence};
use super::windows::{Stretch, Window, Windows};
use crate::images::StepImages;
use monomorph_abi::sliding::Sliding;
use monomorph_model::{Output, SlidingTable, Step, Tokens, VisionSpec};
use std::ops::Range;

/// The tokens of a step as rows, with the blocks of their keys and values.
#[derive(Debug)]
pub struct Batch {
    limits: BatchLimits,
    ids: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    sequences: Vec<Sequence>,
    blocks: Vec<u32>,
    /// The tables of layers with a sliding window.
    sliding: Vec<u32>,
    /// For a stack that has such layers: what they attend to, and the limit of their block ids.
    slides: Option<(Sliding, usize)>,
    outputs: Vec<u32>,
    /// Blocks on disk staged at a time, and blocks of a group.
    pub(super) window: usize,
    pub(super) group: usize,
    /// Whether the step has blocks on disk.
    streams: bool,
    windows: Windows,
    /// By slot: whether a sequence of the step uses it.
    owned: Vec<bool>,
    slots_differ: bool,
    /// Positions after the tokens of a sampled sequence that its blocks also cover.
    ahead: usize,
    /// Images among the tokens, of a stack with a vision tower.
    images: Option<StepImages>,
    /// By row: the last position of its sequence's rows, of a batch of blocks.
    block_ends: Vec<u32>,
}

impl Batch {
    /// An empty batch with room for steps within `limits`.
    pub fn new(limits: BatchLimits) -> Batch {
        Batch {
            limits,
            ids: Vec::with_capacity(limits.tokens),
            positions: Vec::with_capacity(limits.tokens),
            sequence_of: Vec::with_capacity(limits.tokens),
            sequences: Vec::with_capacity(limits.sequences),
            blocks: Vec::with_capacity(limits.blocks.max(limits.sequences)),
            sliding: Vec::new(),
            slides: None,
            outputs: Vec::with_capacity(limits.tokens),
            window: 0,
            group: 1,
            streams: false,
            windows: Windows::default(),
            owned: vec![false; limits.sequences],
            slots_differ: true,
            ahead: 0,
            images: None,
            block_ends: Vec::new(),
        }
    }

    /// The batch, for steps that write `ahead` more positions after the tokens of a sampled sequence.
    #[must_use]
    pub fn ahead(self, ahead: usize) -> Batch {
        Batch { ahead, ..self }
    }

    /// The batch, for a stack with layers that have a sliding window, and so many blocks of these.
    #[must_use]
    pub fn slides(self, slides: Option<(Sliding, usize)>) -> Batch {
        Batch { slides, ..self }
    }

    /// The batch, for a stack with this vision tower.
    #[must_use]
    pub fn sees(self, vision: Option<VisionSpec>) -> Batch {
        Batch { images: vision.map(StepImages::new), ..self }
    }

    /// Flattens a step. Tokens that only the device knows are those that `outputs` recorded as sampled last.
    ///
    /// # Panics
    /// When the step breaks the limits: too many tokens or sequences, a sequence without tokens, a slot,
    /// token id, position or block id out of range, too few blocks, a table of layers with a sliding window
    /// without what they attend to, or of none, a sampled token where none was, drafts where there can be
    /// none, or images where the stack has no tower or that have no such rows. Kernels index by these without
    /// further checks.
    pub fn fill<const DRAFTS: usize>(&mut self, step: &Step, outputs: &Outputs<DRAFTS>) {
        let limits = self.limits;
        assert!(
            step.sequences.len() <= limits.sequences,
            "a step of {} sequences, and the limit is {}",
            step.sequences.len(),
            limits.sequences
        );
        self.ids.clear();
        self.positions.clear();
        self.sequence_of.clear();
        self.sequences.clear();
        self.blocks.clear();
        self.sliding.clear();
        self.outputs.clear();
        self.owned.fill(false);
        self.slots_differ = true;
        let tables = if self.slides.is_some() { step.sequences.len() } else { 0 };
        assert!(
            step.sliding.len() == tables,
            "a step of {} sequences with {} tables of layers with a sliding window, and {tables} are due",
            step.sequences.len(),
            step.sliding.len()
        );
        let mut offloaded = 0;
        for (index, sequence) in step.sequences.iter().enumerate() {
            let (count, position) = (sequence.tokens.len(), sequence.position);
            assert!(count > 0, "sequence {index} of the step has no tokens");
            assert!(
                count <= limits.tokens - self.ids.len(),
                "sequence {index} of the step goes beyond {} tokens",
                limits.tokens
            );
            let drafts = sequence.drafts;
            assert!(
                drafts == 0 || (drafts == DRAFTS && count == 1 + DRAFTS && samples(&sequence.output)),
                "sequence {index} of the step has {drafts} drafts among {count} tokens: it may have {DRAFTS} after the one \
                 sampled last, and be sampled for"
            );
            // With a draft head, all drafts but the last are fed to it, after the tokens.
            let ahead = if samples(&sequence.output) { self.ahead } else { 0 };
            let reach = count.saturating_add(ahead);
            assert!(
                position < limits.context && reach <= limits.context - position,
                "sequence {index} of the step has {count} tokens at position {position}, beyond the context of {}",
                limits.context
            );
            let needed = (position + reach).div_ceil(limits.block_tokens);
            assert!(
                sequence.blocks.len() >= needed,
                "sequence {index} of the step needs {needed} blocks and has {}",
                sequence.blocks.len()
            );
            let (first, first_block, first_output) = (self.ids.len(), self.blocks.len(), self.outputs.len());
            let slot = sequence.slot;
            assert!((slot.0 as usize) < limits.sequences, "there is no slot {}", slot.0);
            self.slots_differ &= !std::mem::replace(&mut self.owned[slot.0 as usize], true);
            match &sequence.tokens {
                Tokens::Known(ids) => self.ids.extend_from_slice(ids),
                Tokens::Sampled => {
                    let id = outputs.sampled(slot);
                    self.ids.push(id.unwrap_or_else(|| panic!("nothing was sampled for slot {}", slot.0)));
                }
            }
            for (i, id) in self.ids[first..].iter().enumerate() {
                assert!((*id as usize) < limits.vocabulary, "token id {id} is not in the vocabulary");
                self.positions.push((position + i) as u32);
                self.sequence_of.push(index as u32);
            }
            for (at, block) in sequence.blocks[..needed].iter().enumerate() {
                match (block.0 as usize).checked_sub(limits.blocks) {
                    None => {}
                    // On disk: read only, and in order.
                    Some(i) => {
                        let written = (at + 1) * limits.block_tokens > position;
                        assert!(
                            self.window > 0
                                && i == offloaded
                                && i < step.offloaded.len() * self.group
                                && !written,
                            "there is no K/V block {}",
                            block.0
                        );
                        offloaded += 1;
                    }
                }
                self.blocks.push(block.0);
            }
            let first_sliding = self.sliding.len();
            let sliding_first = self.fill_sliding(index, step.sliding.get(index), position, needed);
            let rows = first..self.ids.len();
            match sequence.output {
                Output::None => {}
                Output::Sample { .. } => {
                    self.outputs.extend((rows.end - 1 - drafts) as u32..rows.end as u32);
                }
                Output::Logits => self.outputs.extend(rows.start as u32..rows.end as u32),
            }
            self.sequences.push(Sequence {
                slot: slot.0 as usize,
                rows,
                position,
                drafts,
                blocks: first_block..self.blocks.len(),
                sliding: first_sliding..self.sliding.len(),
                sliding_first,
                outputs: first_output..self.outputs.len(),
            });
        }
        assert!(
            offloaded == step.offloaded.len() * self.group,
            "blocks of {} groups on disk are {offloaded}",
            step.offloaded.len()
        );
        self.streams = offloaded > 0;
        match &mut self.images {
            Some(images) => images.fill(
                step.images.iter(),
                self.sequences.iter().map(|it| it.rows.clone()),
                &self.positions,
            ),
            None => assert!(step.images.is_empty(), "a step with images, and the stack has no vision tower"),
        }
        self.end();
    }

    /// Adds the table of layers with a sliding window of sequence `index`, as far as its first `needed`
    /// blocks; returns which of these is the first there.
    fn fill_sliding(
        &mut self,
        index: usize,
        table: Option<&SlidingTable>,
        position: usize,
        needed: usize,
    ) -> usize {
        let (Some((it, blocks)), Some(table)) = (self.slides, table) else { return 0 };
        let (first, attended) = (table.first, it.first(position));
        assert!(
            first <= attended && first + table.blocks.len() >= needed,
            "sequence {index} of the step needs blocks {attended}..{needed} of layers with a sliding window, and has \
             {} from {first} on",
            table.blocks.len()
        );
        for block in &table.blocks[..needed - first] {
            assert!(
                (block.0 as usize) < blocks,
                "there is no block {} of layers with a sliding window",
                block.0
            );
            self.sliding.push(block.0);
        }
        first
    }

    /// The windows in which the step's blocks on disk are staged; empty if it has none.
    pub(crate) fn windows(&self) -> &[Window] {
        self.windows.windows()
    }

    /// The stretches to attend to while a window is staged; without a window, all of them.
    pub(crate) fn stretches(&self, window: Option<&Window>) -> &[Stretch] {
        self.windows.stretches(window)
    }

    /// Number of tokens, which are the activations' rows `0 ..`.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Rows that need logits, in the order of the step's sequences.
    pub fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    /// The range of [`Batch::outputs`] that belongs to sequence `index` of the step.
    ///
    /// # Panics
    /// When the step has no such sequence.
    pub fn sequence_outputs(&self, index: usize) -> Range<usize> {
        self.sequences[index].outputs.clone()
    }

    /// The index of the sequence that output `output` belongs to.
    ///
    /// # Panics
    /// When there is no such output.
    pub fn sequence_of_output(&self, output: usize) -> usize {
        self.sequence_of[self.outputs[output] as usize] as usize
    }

    /// The limits that the batch was made with.
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// Token ids, one per row.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Positions, one per row.
    pub(crate) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// By row: the last position of its sequence's rows.
    ///
    /// # Panics
    /// Of a batch that was [filled](Self::fill) with a step and not pushed row by row.
    pub(crate) fn block_ends(&self) -> &[u32] {
        assert_eq!(self.block_ends.len(), self.ids.len(), "only a draft pass has blocks");
        &self.block_ends
    }

    /// Images among the tokens.
    ///
    /// # Panics
    /// Of a stack without a vision tower.
    pub(crate) fn images(&self) -> &StepImages {
        self.images.as_ref().expect("only a stack with a vision tower has such phases")
    }

    /// Whether the step's sequences have distinct slots, as phases that write slot state require.
    pub(crate) fn slots_differ(&self) -> bool {
        self.slots_differ
    }

    pub(crate) fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// The sequence that row `row` belongs to.
    pub(crate) fn sequence_of(&self, row: usize) -> &Sequence {
        &self.sequences[self.sequence_of[row] as usize]
    }

    /// Empties the batch and takes over the sequences and block tables of `of`. Rows are then
    /// [pushed](Self::push), and the batch [ended](Self::end).
    pub(super) fn begin(&mut self, of: &Batch) {
        self.ids.clear();
        self.positions.clear();
        self.sequence_of.clear();
        self.sequences.clear();
        self.outputs.clear();
        self.block_ends.clear();
        self.blocks.clone_from(&of.blocks);
        self.sliding.clone_from(&of.sliding);
        self.slides = of.slides;
        (self.streams, self.window, self.group) = (of.streams, of.window, of.group);
        if let Some(images) = &of.images {
            self.images.get_or_insert_with(|| images.none()).begin();
        }
    }

    /// Adds a sequence with the blocks of `of`, a sequence of the batch `from` that was given to
    /// [`Self::begin`]. Its `rows`, `(position, id)`, have consecutive positions. They are turned as the
    /// tokens there; an id is that of the token at its position, or if it `follows` of the one behind, whose
    /// row of an image it takes.
    pub(super) fn push(
        &mut self,
        from: &Batch,
        of: &Sequence,
        follows: bool,
        rows: impl Iterator<Item = (usize, u32)>,
    ) {
        let (start, index) = (self.ids.len(), self.sequences.len());
        for (position, id) in rows {
            self.ids.push(id);
            self.positions.push(position as u32);
            self.sequence_of.push(index as u32);
        }
        let position = self.positions[start] as usize;
        let rows = start..self.ids.len();
        self.block_ends.resize(rows.end, self.positions[rows.end - 1]);
        if let (Some(images), Some(seen)) = (&mut self.images, &from.images) {
            for index in &self.positions[rows.clone()] {
                let token = of.rows.start + (*index as usize - of.position);
                let row = match token + 1 < of.rows.end {
                    true => seen.row(token + 1, None),
                    false => seen.following(from.sequence_of[of.rows.start] as usize),
                };
                let last = of.rows.end - 1;
                let turned = match token <= last {
                    true => seen.position(token),
                    false => [seen.behind(last, from.positions[last], *index); 3],
                };
                images.push(*index, row.filter(|_| follows), turned);
            }
        }
        self.sequences.push(Sequence { rows, position, drafts: 0, outputs: 0..0, ..of.clone() });
    }

    /// Completes the batch that [`Self::begin`] started.
    pub(super) fn end(&mut self) {
        let most = if self.streams { self.window } else { 0 };
        self.windows.fill(&self.sequences, &self.blocks, &self.limits, most, self.group);
    }

    /// The block table of a sequence: block `i` holds positions from `i * block_tokens` on.
    pub(crate) fn blocks_of(&self, sequence: &Sequence) -> BlockTable<'_> {
        BlockTable { first: 0, blocks: &self.blocks[sequence.blocks.clone()] }
    }

    /// That of layers with a sliding window.
    pub(crate) fn sliding_of(&self, sequence: &Sequence) -> BlockTable<'_> {
        BlockTable { first: sequence.sliding_first, blocks: &self.sliding[sequence.sliding.clone()] }
    }

    /// Block ids of layers with a sliding window lie below it.
    pub(crate) fn sliding_limit(&self) -> usize {
        self.slides.map_or(0, |(_, blocks)| blocks)
    }
}

fn samples(output: &Output) -> bool {
    matches!(output, Output::Sample { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::{BlockId, SequenceStep, SlidingId, Slot};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn limits() -> BatchLimits {
        BatchLimits { tokens: 8, sequences: 2, vocabulary: 10, context: 64, block_tokens: 16, blocks: 4 }
    }

    fn sequence(position: usize, tokens: &[u32], blocks: &[u32], output: Output) -> SequenceStep {
        SequenceStep {
            drafts: 0,
            generated: false,
            following: None,
            begins: position == 0,
            slot: Slot(0),
            position,
            tokens: Tokens::Known(tokens.to_vec()),
            blocks: blocks.iter().map(|b| BlockId(*b)).collect(),
            output,
        }
    }

    #[test]
    fn steps_are_flattened() {
        let mut batch = Batch::new(limits());
        for _ in 0..2 {
            let step = Step {
                sequences: vec![
                    sequence(15, &[1, 2], &[3, 0], Output::Logits),
                    SequenceStep { slot: Slot(1), ..sequence(0, &[4], &[1, 2], Output::None) },
                ],
                ..Step::default()
            };
            batch.fill(&step, &Outputs::<0>::default());
            assert_eq!(batch.ids(), [1, 2, 4]);
            assert_eq!(batch.positions(), [15, 16, 0]);
            assert_eq!(batch.outputs(), [0, 1]);
            assert_eq!((batch.sequence_of_output(0), batch.sequence_of_output(1)), (0, 0));
            assert_eq!((batch.sequence_outputs(0), batch.sequence_outputs(1)), (0..2, 2..2));
            let second = batch.sequence_of(2).clone();
            assert_eq!((second.rows.clone(), second.position, second.slot), (2..3, 0, 1));
            assert!(batch.slots_differ());
            // Blocks beyond the tokens are left out.
            assert_eq!(batch.blocks_of(&second).blocks, [1]);
        }
    }

    #[test]
    fn tables_of_layers_with_a_sliding_window_begin_with_what_a_row_attends_to() {
        let slides = Some((Sliding { window: 20, block_tokens: 16 }, 3));
        let mut batch = Batch::new(limits()).slides(slides);
        let step = |first: usize, ids: &[u32]| Step {
            sequences: vec![sequence(40, &[1, 2], &[3, 0, 2], Output::None)],
            sliding: vec![SlidingTable { first, blocks: ids.iter().copied().map(SlidingId).collect() }],
            ..Step::default()
        };
        for (first, ids) in [(1, &[2, 1][..]), (0, &[0, 2, 1]), (1, &[2, 1, 0])] {
            batch.fill(&step(first, ids), &Outputs::<0>::default());
            let table = batch.sliding_of(&batch.sequences()[0]);
            assert_eq!((table.first, table.at(1), table.at(2), table.blocks.len()), (first, 2, 1, 3 - first));
        }
        let none = Step { sliding: Vec::new(), ..step(1, &[2, 1]) };
        for (step, message) in [
            (step(2, &[1]), "needs blocks 1..3 of layers with a sliding window, and has 1 from 2 on"),
            (step(1, &[2]), "and has 1 from 1 on"),
            (step(1, &[2, 3]), "no block 3 of layers with a sliding window"),
            (none, "with 0 tables of layers with a sliding window, and 1 are due"),
        ] {
            let mut batch = Batch::new(limits()).slides(slides);
            let panic =
                catch_unwind(AssertUnwindSafe(|| batch.fill(&step, &Outputs::<0>::default()))).unwrap_err();
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.contains(message), "{text:?} lacks {message:?}");
        }
    }

    #[test]
    fn what_breaks_the_limits_is_refused() {
        let bad = [
            (sequence(0, &[], &[0], Output::None), "has no tokens"),
            (sequence(0, &[10], &[0], Output::None), "token id 10"),
            (sequence(0, &[1], &[4], Output::None), "no K/V block 4"),
            (sequence(16, &[1], &[0], Output::None), "needs 2 blocks and has 1"),
            (sequence(0, &[1; 9], &[0], Output::None), "beyond 8 tokens"),
            (sequence(64, &[1], &[0, 1, 2, 3, 0], Output::None), "beyond the context of 64"),
            (sequence(usize::MAX, &[1], &[0], Output::None), "beyond the context of 64"),
            (SequenceStep { slot: Slot(2), ..sequence(0, &[1], &[0], Output::None) }, "no slot 2"),
            (
                SequenceStep { tokens: Tokens::Sampled, ..sequence(0, &[], &[0], Output::None) },
                "nothing was sampled for slot 0",
            ),
        ];
        for (sequence, message) in bad {
            let mut batch = Batch::new(limits());
            let step = Step { sequences: vec![sequence], ..Step::default() };
            let panic =
                catch_unwind(AssertUnwindSafe(|| batch.fill(&step, &Outputs::<0>::default()))).unwrap_err();
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.contains(message), "{text:?} lacks {message:?}");
        }
    }
}

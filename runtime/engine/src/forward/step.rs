//! Builds the next step.

use super::batch::Batch;
use super::contract::Contract;
use super::in_flight::Pipeline;
use super::memory::Memory;
use super::row::Row;
use crate::request::EngineError;
use crate::scheduler::Row as Planned;
use monomorph_cache::{BlockPlace, Lease};
use monomorph_model::{
    BlockId, OffloadSlot, Output, SequenceImages, SequenceStep, SlidingId, SlidingTable, Slot, StateCopy,
    Step, Tokens,
};
use monomorph_sampling::Sampling;
use std::ops::Range;

/// The step that is submitted next, or was last, and its bookkeeping until it is collected.
#[derive(Default)]
pub(super) struct StepBuilder {
    step: Step,
    rows: Vec<Row>,
    /// Rows of earlier steps and their token lists, kept for reuse.
    spare: Vec<SequenceStep>,
    spare_ids: Vec<Vec<u32>>,
}

impl StepBuilder {
    /// Builds the rows, reusing earlier steps' memory: nothing is allocated once they have held their longest
    /// sequence. With split sampling, inputs may be bound later.
    ///
    /// # Errors
    /// When a running sequence has no slot, or promised blocks are missing: either is a bug in the engine.
    pub fn build(
        &mut self,
        rows: &[Planned],
        split: bool,
        batch: &mut Batch,
        memory: &mut Memory,
        pipeline: &mut Pipeline,
        contract: &Contract,
    ) -> Result<(), String> {
        let number = pipeline.next_step();
        self.step.sampling_follows = false;
        self.rows = pipeline.rows();
        self.spare.append(&mut self.step.sequences);
        self.step.offloaded.clear();
        let slides = memory.windows().are_there();
        self.step.sliding.resize_with(if slides { rows.len() } else { 0 }, SlidingTable::default);
        self.step.images.clear();
        if rows.iter().any(|row| !batch[row.sequence].images.is_empty()) {
            self.step.images.resize_with(rows.len(), SequenceImages::default);
        }
        for (at, &Planned { sequence, tokens }) in rows.iter().enumerate() {
            let sequence = &mut batch[sequence];
            let slot = sequence.slot.ok_or("a sequence runs without a slot")?;
            let prefilled = if sequence.decodes() { 0 } else { tokens };
            let save = memory.save(sequence, slot);
            let (position, drafts) = (sequence.fed(), sequence.drafts().len());
            let end = position + tokens - drafts;
            let scores = sequence.scores(end).then_some(position);
            let samples = end == sequence.length() && !sequence.is_scoring();
            let mut row = self.row(slot, position);
            row.begins = sequence.begins();
            row.drafts = drafts;
            row.generated = position >= sequence.prompt();
            // `None` after the last known token: the next is being sampled.
            row.following = sequence.tokens().get(end).copied();
            // Only one token can be fed beyond the known ones: the one sampled last.
            if end <= sequence.tokens().len() {
                let mut ids = self.spare_ids.pop().unwrap_or_default();
                ids.clear();
                ids.extend_from_slice(&sequence.tokens()[position..end]);
                ids.extend_from_slice(sequence.drafts());
                row.tokens = Tokens::Known(ids);
            }
            let ahead = if samples { contract.ahead(drafts) } else { 0 };
            self.write_blocks(&mut row, sequence.lease.prefix(position + tokens + ahead), memory);
            if slides {
                memory.grow_sliding(sequence, position + tokens + ahead)?;
                let first = memory.windows().first(position);
                self.write_sliding(at, &sequence.lease, first..row.blocks.len());
            }
            if let Some(images) = self.step.images.get_mut(at) {
                *images = sequence.images.of_step(position..position + tokens, sequence.tokens());
            }
            let (history, biases, masks) = match std::mem::replace(&mut row.output, Output::None) {
                Output::Sample { history, biases, masks, .. } => (history, biases, masks),
                Output::None | Output::Logits => (Vec::new(), Vec::new(), Vec::new()),
            };
            if samples {
                self.step.sampling_follows |= split && sequence.binds_later();
                let (sampling, draw) = (sequence.sampling().clone(), sequence.draw());
                row.output = Output::Sample { sampling, draw, history, biases, masks };
            }
            if scores.is_some() {
                row.output = Output::Logits;
            }
            self.step.sequences.push(row);
            let chunk = end < sequence.prompt();
            let offloaded = sequence.lease.offloaded_blocks() > 0;
            self.rows.push(Row { slot, prefilled, chunk, samples, scores, end, offloaded, save });
            sequence.submitted(end, samples, number);
        }
        Ok(())
    }

    /// A row in the memory of an earlier one; the caller sets everything but its output.
    fn row(&mut self, slot: Slot, position: usize) -> SequenceStep {
        let Some(mut row) = self.spare.pop() else {
            return SequenceStep {
                drafts: 0,
                generated: false,
                following: None,
                slot,
                position,
                begins: false,
                tokens: Tokens::Sampled,
                blocks: Vec::new(),
                output: Output::None,
            };
        };
        row.slot = slot;
        row.position = position;
        if let Tokens::Known(ids) = std::mem::replace(&mut row.tokens, Tokens::Sampled) {
            self.spare_ids.push(ids);
        }
        row
    }

    /// Writes the block ids of a row. Ids of offloaded blocks come after the device's, group by group in the
    /// order in which the step lists their places.
    fn write_blocks(
        &mut self,
        row: &mut SequenceStep,
        held: impl Iterator<Item = BlockPlace>,
        memory: &Memory,
    ) {
        let (blocks, group) = (memory.cache().capacity(), memory.share().group);
        let offloaded = &mut self.step.offloaded;
        row.blocks.clear();
        row.blocks.extend(held.map(|place| match place {
            BlockPlace::Device(block) => BlockId(block.0),
            BlockPlace::Disk(place, at) => {
                if at == 0 {
                    offloaded.push(OffloadSlot(place.0));
                }
                BlockId((blocks + (offloaded.len() - 1) * group + at) as u32)
            }
        }));
    }

    /// Writes the table of layers with a sliding window of row `at`: these of its sequence's blocks, which it
    /// has.
    fn write_sliding(&mut self, at: usize, lease: &Lease, blocks: Range<usize>) {
        let ((first, held), table) = (lease.sliding(), &mut self.step.sliding[at]);
        table.first = blocks.start;
        table.blocks.clear();
        let held = &held[blocks.start - first..blocks.end - first];
        table.blocks.extend(held.iter().map(|block| SlidingId(block.0)));
    }

    /// Fills in sampling inputs. Returns the indices of sequences whose constraint allows no token,
    /// ascending; their samples are discarded.
    pub fn bind_sampling(&mut self, batch: &mut Batch) -> Vec<(usize, EngineError)> {
        batch.index_slots();
        let mut stuck = Vec::new();
        for row in &mut self.step.sequences {
            let Output::Sample { sampling, history, biases, masks, .. } = &mut row.output else { continue };
            // The sequence has ended; its sample is discarded.
            let bound = batch.at_slot(row.slot).map_or(Err(None), |index| {
                let bound = batch[index].bind_sampling(row.drafts, history, biases, masks);
                bound.map_err(|why| Some((index, why)))
            });
            if let Err(end) = bound {
                stuck.extend(end);
                *sampling = Sampling::default();
                history.clear();
                biases.clear();
                masks.clear();
            }
        }
        stuck.sort_unstable_by_key(|(index, _)| *index);
        stuck
    }

    /// Whether the step submitted last waits for its sampling inputs.
    pub fn awaits_sampling(&self) -> bool {
        self.step.sampling_follows
    }

    /// Records that its sampling inputs are bound.
    pub fn sampling_bound(&mut self) {
        self.step.sampling_follows = false;
    }

    /// The step, which begins with these copies of states; drains `copies`.
    pub fn with_copies(&mut self, copies: &mut Vec<StateCopy>) -> &Step {
        self.step.copies.append(copies);
        &self.step
    }

    /// The step as it was submitted.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Takes the bookkeeping of the step just submitted.
    pub fn submitted(&mut self) -> Vec<Row> {
        self.step.copies.clear();
        std::mem::take(&mut self.rows)
    }
}

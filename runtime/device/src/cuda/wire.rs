//! Flattens the engine's steps into the metadata that kernels read.

mod rows;
mod tables;

pub(crate) use monomorph_abi::bytes_of;
pub(crate) use monomorph_abi::step::{Bias, Header, MAX_SEQUENCES, SampledRow, SequenceRow, TokenRow, Use};
pub(crate) use rows::read_sampled;
pub(crate) use tables::{Tables, device_bytes};

use crate::images::StepImages;
use monomorph_abi::images::{BeforeBlocks, DraftImages, ImageRow, PositionShifts};
use monomorph_abi::sliding::{Sliding, SlidingStarts, blocks_at};
use monomorph_abi::step::{Ids, SamplingRow};
use monomorph_model::{Output, SequenceImages, SequenceStep, SlidingTable, Tokens, VisionSpec};
use monomorph_sampling::{MAX_BIASES, TokenBias, TokenMask, TokenUse, with_generated};
use rows::sampling_row;
use std::ops::Range;
use std::sync::Arc;

/// The bounds of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    pub(crate) tokens: usize,
    pub(crate) sequences: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) block_tokens: usize,
    pub(crate) blocks: usize,
    /// Layers with a sliding window, and how many blocks they have.
    pub(crate) slides: Option<(Sliding, usize)>,
    /// The vision tower, if the stack has one.
    pub(crate) vision: Option<VisionSpec>,
    /// Blocks on disk; their ids follow the device's.
    pub(crate) offloaded: usize,
    /// Drafts of a sequence to verify.
    pub(crate) drafts: usize,
    /// The part of `drafts` that the stack makes itself.
    pub(crate) drafted: usize,
    /// Positions that draft passes write after the last token fed.
    pub(crate) ahead: usize,
}

impl StepLimits {
    /// What stands before the block table of images.
    fn before_blocks(&self) -> BeforeBlocks {
        before_blocks(self.vision, self.drafted)
    }
}

/// The rows of a header by sequence: those of drafts are entries of their own.
fn entries_of<'a>(
    rows: &'a [SequenceRow],
    limits: &StepLimits,
    verifies: bool,
) -> std::slice::Chunks<'a, SequenceRow> {
    rows.chunks(if verifies { 1 + limits.drafts } else { 1 })
}

/// The tokens of a sequence with these rows of a header.
fn tokens_of(entries: &[SequenceRow]) -> Range<usize> {
    let (first, last) = (&entries[0], &entries[entries.len() - 1]);
    first.first_token as usize..(last.first_token + last.count) as usize
}

/// What stands before the block table of a stack with this tower, if it has one, whose passes draft so many
/// tokens.
fn before_blocks(vision: Option<VisionSpec>, drafted: usize) -> BeforeBlocks {
    vision.map_or(BeforeBlocks::Nothing, |vision| BeforeBlocks::of(vision.grid_positions, drafted > 0))
}

/// A row of logits to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutputRow {
    /// Token row.
    pub(crate) row: i32,
    /// Index of its sequence in the step.
    pub(crate) sequence: usize,
    /// Its sampling inputs. Its mask is an index into the step's mask words.
    pub(crate) sampling: SamplingRow,
    /// Whether the engine wants the logits.
    pub(crate) logits: bool,
}

/// Where the blocks of a sequence start among the step's.
#[derive(Clone, Copy, Debug)]
struct Starts {
    blocks: i32,
    /// Of layers with a sliding window, which follow all others.
    sliding: i32,
}

/// A step, flattened to what kernels index.
#[derive(Debug)]
pub(crate) struct StepBuffer {
    limits: StepLimits,
    /// Whether a token has been sampled for each slot.
    sampled: Vec<bool>,
    pub(crate) header: Box<Header>,
    /// Where the tables of layers with a sliding window begin, which stands behind the header of a stack that
    /// has such layers.
    pub(crate) starts: Box<SlidingStarts>,
    /// By sequence, what is added to indices for positions: right before the block table of a stack whose
    /// positions have three axes.
    pub(crate) shifts: Box<PositionShifts>,
    /// What draft passes read of images, before these.
    pub(crate) of_drafts: Box<DraftImages>,
    /// The images of a step, of a stack that takes some, and what kernels read of them: one a token.
    seen: Option<StepImages>,
    pub(crate) images: Vec<ImageRow>,
    pub(crate) blocks: Vec<i32>,
    /// The blocks of these layers, which follow the others on the device.
    pub(crate) sliding: Vec<i32>,
    pub(crate) tokens: Vec<TokenRow>,
    pub(crate) history: Vec<Use>,
    /// Biases, which follow the history on the device.
    pub(crate) biases: Vec<Bias>,
    /// Words of the masks, which follow the biases.
    pub(crate) masks: Vec<u32>,
    pub(crate) outputs: Vec<OutputRow>,
    /// The first output row of each sequence.
    pub(crate) first_outputs: Vec<usize>,
    /// Whether a decode program can run it: every sequence feeds one token and has an output row.
    pub(crate) decodes: bool,
    /// Whether its sequences have drafts to verify.
    verifies: bool,
    /// Sequences to draft for.
    pub(crate) drafted: usize,
}

impl StepBuffer {
    pub(crate) fn new(limits: StepLimits) -> StepBuffer {
        let header = Header {
            tokens: 0,
            sequences: 0,
            outputs: 0,
            blocks_at: blocks_at(limits.slides.is_some(), limits.before_blocks()) as i32,
            output_rows: [0; MAX_SEQUENCES],
            sequence: [SequenceRow::NONE; MAX_SEQUENCES],
            sampling: [SamplingRow::GREEDY; MAX_SEQUENCES],
        };
        StepBuffer {
            limits,
            sampled: vec![false; limits.sequences],
            header: Box::new(header),
            starts: Box::new(SlidingStarts::NONE),
            shifts: Box::new(PositionShifts::NONE),
            of_drafts: Box::new(DraftImages::NONE),
            seen: limits.vision.map(StepImages::new),
            images: Vec::new(),
            blocks: Vec::new(),
            sliding: Vec::new(),
            tokens: Vec::new(),
            history: Vec::new(),
            biases: Vec::new(),
            masks: Vec::new(),
            outputs: Vec::new(),
            first_outputs: Vec::new(),
            decodes: false,
            verifies: false,
            drafted: 0,
        }
    }

    /// Flattens a step, or the part of it that verifies no drafts. If it `decodes`, every sequence feeds one
    /// token and has an output row: sequence `i` row `i`. `tables` are those of layers with a sliding window,
    /// one a sequence; none of a stack without such layers.
    ///
    /// # Panics
    /// When the step breaks the limits: too many tokens or sequences, a sequence without tokens, a slot,
    /// token id, position or block id out of range, too few blocks, a table of layers with a sliding window
    /// that lacks blocks which its sequence attends to, or a sampled token where none was. Kernels index by
    /// these without further checks.
    pub(crate) fn fill(&mut self, sequences: &[&SequenceStep], tables: &[&SlidingTable], decodes: bool) {
        self.begin(sequences.len(), tables.len());
        self.decodes = decodes;
        for (index, sequence) in sequences.iter().enumerate() {
            let fed = sequence.tokens.len();
            assert!(!decodes || fed == 1, "sequence {index} of the step decodes, and is fed {fed} tokens");
            assert!(sequence.drafts == 0, "drafts of sequence {index} of the step are to be verified");
            let (first, starts) = (self.tokens.len(), self.place(index, sequence, tables.get(index), 0));
            let following = sequence.following.map_or(-1, |id| self.known(id));
            let samples = matches!(sequence.output, Output::Sample { .. });
            self.header.sequence[index] = SequenceRow {
                first_token: first as i32,
                count: sequence.tokens.len() as i32,
                position: sequence.position as i32,
                block_start: starts.blocks,
                token: self.tokens[first].id,
                slot: sequence.slot.0 as i32,
                drafted: if samples { self.drafted as i32 } else { -1 },
                following,
            };
            self.starts.start[index] = starts.sliding;
            self.drafted += usize::from(samples);
            self.push_output(index, first, sequence);
        }
        self.header.sequences = sequences.len() as i32;
        self.end();
    }

    /// Flattens the part of a step whose sequences have drafts to verify. Every token is a sequence of its
    /// own to the kernels that need not know about drafts. It has an output row, sampled with the history and
    /// the draw that it has if the drafts before it are accepted. A sequence without drafts is filled up to
    /// the same number of rows by feeding its token again; these rows are discarded.
    ///
    /// # Panics
    /// As [`StepBuffer::fill`], and when a sequence feeds neither one token alone nor one token and all
    /// drafts, or is not to be sampled.
    pub(crate) fn verify(&mut self, sequences: &[&SequenceStep], tables: &[&SlidingTable]) {
        let limits = self.limits;
        self.begin(sequences.len(), tables.len());
        self.verifies = true;
        for (index, sequence) in sequences.iter().enumerate() {
            let (Tokens::Known(ids), Output::Sample { sampling, draw, history, biases, masks }) =
                (&sequence.tokens, &sequence.output)
            else {
                panic!("sequence {index} of the step has drafts that are not known or not sampled after");
            };
            assert!(
                [0, limits.drafts].contains(&sequence.drafts) && ids.len() == 1 + sequence.drafts,
                "sequence {index} of the step feeds {} tokens of which {} are drafts, and {} are drafted",
                ids.len(),
                sequence.drafts,
                limits.drafts
            );
            let filling = limits.drafts - sequence.drafts;
            let (first, starts) =
                (self.tokens.len(), self.place(index, sequence, tables.get(index), filling));
            self.first_outputs.push(self.outputs.len());
            for (at, id) in ids.iter().chain(std::iter::repeat_n(&ids[0], filling)).enumerate() {
                let row = first + at;
                self.header.sequence[row] = SequenceRow {
                    first_token: row as i32,
                    count: 1,
                    position: (sequence.position + at) as i32,
                    block_start: starts.blocks,
                    token: *id as i32,
                    slot: sequence.slot.0 as i32,
                    drafted: if at == 0 { index as i32 } else { -1 },
                    following: -1,
                };
                self.starts.start[row] = starts.sliding;
                let mut wanted = SamplingRow::GREEDY;
                if let Some(drafts) = ids.get(1..=at) {
                    wanted = sampling_row(
                        sampling,
                        draw + at as u64,
                        Ids { sequences: limits.sequences }.row(row),
                    );
                    if sampling.needs_history() {
                        let longer = with_generated(history, drafts);
                        (wanted.history_start, wanted.history_count) = self.push_history(&longer);
                    }
                    (wanted.bias_start, wanted.bias_count) = self.push_biases(biases.get(at));
                    wanted.mask = self.push_mask(masks.get(at));
                }
                self.outputs.push(OutputRow {
                    row: row as i32,
                    sequence: index,
                    sampling: wanted,
                    logits: false,
                });
            }
            // The device knows the last accepted token only if it drafts itself.
            self.sampled[sequence.slot.0 as usize] = limits.drafted > 0;
        }
        self.drafted = sequences.len();
        self.header.sequences = self.tokens.len() as i32;
        self.end();
    }

    /// Adds to the step at hand what images are in its sequences: one a sequence, or none at all. Where
    /// drafts are verified, every row of a sequence has a shift, those that fill it up too. Passes that draft
    /// go on from the largest axis of a sequence's last row, as text does.
    ///
    /// # Panics
    /// When these break the limits ([`StepImages::fill`]), reach beyond the context, or are none of a step
    /// that decodes or verifies; or there are some and the stack has no tower.
    pub(crate) fn fill_images(&mut self, images: &[&SequenceImages]) {
        self.images.clear();
        let Some(seen) = &mut self.seen else {
            assert!(images.is_empty(), "a step with images, and the stack has no vision tower");
            return;
        };
        let rows = &self.header.sequence[..self.header.sequences as usize];
        let indices = |row: &SequenceRow| row.position as u32..(row.position + row.count) as u32;
        let indices: Vec<u32> = rows.iter().flat_map(indices).collect();
        let entries = entries_of(rows, &self.limits, self.verifies);
        seen.fill(images.iter().copied(), entries.map(tokens_of), &indices);
        for (token, index) in indices.iter().enumerate() {
            let position = seen.position(token).map(|axis| axis as i32);
            let largest = position.into_iter().max().unwrap_or_default();
            assert!((largest as usize) < self.limits.context, "position {largest} is beyond the context");
            let row = seen.row(token, None).map_or(-1, |row| row as i32);
            let last = seen.ends()[token] as i32;
            self.images.push(ImageRow { row, last, position });
            if self.decodes || self.verifies {
                let shift = position[0] - *index as i32;
                let plain = row < 0 && position == [position[0]; 3];
                assert!(plain, "row {token} of the step decodes a token of an image");
                self.shifts.shift[token] = shift;
            }
        }
        if self.limits.drafted == 0 {
            return;
        }
        let rows = &self.header.sequence[..self.header.sequences as usize];
        for (index, entry) in entries_of(rows, &self.limits, self.verifies).enumerate() {
            let following = seen.following(index).map_or(-1, |row| row as i32);
            assert!(
                following < 0 || !self.verifies,
                "sequence {index} of the step is verified before an image"
            );
            self.of_drafts.following[index] = following;
            let Ok(place) = usize::try_from(entry[0].drafted) else { continue };
            let last = tokens_of(entry).end - 1;
            let largest = seen.position(last).into_iter().max().unwrap_or_default();
            assert!(
                largest as usize + self.limits.ahead < self.limits.context,
                "position {largest} of what is drafted from is too near the end of the context"
            );
            self.of_drafts.shift[place] = largest as i32 - indices[last] as i32;
        }
    }

    /// The header of a tower's step over so many patches, which become so many tokens.
    pub(crate) fn see(&mut self, patches: usize, tokens: usize) {
        (self.header.tokens, self.header.sequences, self.header.outputs) = (patches as i32, 0, tokens as i32);
    }

    /// What stands before the block table of images, in order.
    pub(crate) fn before_blocks(&self) -> [&[u8]; 2] {
        let shifts = bytes_of(std::slice::from_ref(&*self.shifts));
        match self.limits.before_blocks() {
            BeforeBlocks::Nothing => [&[], &[]],
            BeforeBlocks::Shifts => [&[], shifts],
            BeforeBlocks::Drafts => [bytes_of(std::slice::from_ref(&*self.of_drafts)), shifts],
        }
    }

    /// Whether the stack has layers with a sliding window.
    pub(crate) fn slides(&self) -> bool {
        self.limits.slides.is_some()
    }

    fn begin(&mut self, count: usize, tables: usize) {
        assert!(count > 0, "a step without sequences");
        assert!(
            count <= self.limits.sequences,
            "a step of {count} sequences, and the limit is {}",
            self.limits.sequences
        );
        let due = if self.slides() { count } else { 0 };
        assert!(
            tables == due,
            "a step of {count} sequences with {tables} tables of layers with a sliding window, and {due} are due"
        );
        self.blocks.clear();
        self.sliding.clear();
        self.tokens.clear();
        self.history.clear();
        self.biases.clear();
        self.masks.clear();
        self.outputs.clear();
        self.first_outputs.clear();
        (self.decodes, self.verifies) = (false, false);
        self.drafted = 0;
    }

    /// Completes what the sequences' rows say of tables that follow others.
    fn end(&mut self) {
        let (rows, blocks) = (self.header.sequences as usize, self.blocks.len() as i32);
        self.starts.start[..rows].iter_mut().for_each(|start| *start += blocks);
    }

    /// Adds a sequence's tokens, followed by `filling` repetitions of the first, and its blocks; returns
    /// where these start.
    fn place(
        &mut self,
        index: usize,
        sequence: &SequenceStep,
        table: Option<&&SlidingTable>,
        filling: usize,
    ) -> Starts {
        let limits = self.limits;
        let (fed, position, slot) = (sequence.tokens.len(), sequence.position, sequence.slot.0 as usize);
        assert!(slot < limits.sequences, "there is no slot {slot}");
        assert!(fed > 0, "sequence {index} of the step has no tokens");
        assert!(
            fed + filling <= limits.tokens - self.tokens.len(),
            "sequence {index} of the step goes beyond {} tokens",
            limits.tokens
        );
        let samples = matches!(sequence.output, Output::Sample { .. });
        let written = fed + filling + if samples { limits.ahead } else { 0 };
        assert!(
            position < limits.context && written <= limits.context - position,
            "sequence {index} of the step writes {written} tokens at position {position}, beyond the context of {}",
            limits.context
        );
        let needed = (position + written).div_ceil(limits.block_tokens);
        assert!(
            sequence.blocks.len() >= needed,
            "sequence {index} of the step needs {needed} blocks and has {}",
            sequence.blocks.len()
        );
        let starts = Starts {
            blocks: self.blocks.len() as i32,
            sliding: table.map_or(0, |table| self.push_sliding(index, table, position, needed)),
        };
        for (at, block) in sequence.blocks[..needed].iter().enumerate() {
            // Blocks on disk are only read.
            let further = if at < position / limits.block_tokens { limits.offloaded } else { 0 };
            assert!((block.0 as usize) < limits.blocks + further, "there is no K/V block {}", block.0);
            self.blocks.push(block.0 as i32);
        }
        let sequence_row = index as i32;
        match &sequence.tokens {
            Tokens::Known(ids) => {
                for id in ids {
                    let id = self.known(*id);
                    self.tokens.push(TokenRow { id, sequence: sequence_row });
                }
                let id = self.known(ids[0]);
                self.tokens.extend(std::iter::repeat_n(TokenRow { id, sequence: sequence_row }, filling));
            }
            Tokens::Sampled => {
                assert!(self.sampled[slot], "nothing was sampled for slot {slot}");
                self.tokens.push(TokenRow { id: -1, sequence: sequence_row });
            }
        }
        self.header.tokens = self.tokens.len() as i32;
        starts
    }

    /// Adds what layers with a sliding window read of a sequence's first `needed` blocks from `position` on;
    /// returns where its block 0 would stand among the step's, had it all of them: that may be negative.
    fn push_sliding(&mut self, index: usize, table: &SlidingTable, position: usize, needed: usize) -> i32 {
        let Some((it, blocks)) = self.limits.slides else { return 0 };
        let (attended, start) = (it.first(position), self.sliding.len());
        assert!(
            table.first <= attended && table.first + table.blocks.len() >= needed,
            "sequence {index} of the step needs blocks {attended}..{needed} of layers with a sliding window, and has \
             {} from {} on",
            table.blocks.len(),
            table.first
        );
        for block in &table.blocks[attended - table.first..needed - table.first] {
            let there = (block.0 as usize) < blocks;
            assert!(there, "there is no block {} of layers with a sliding window", block.0);
            self.sliding.push(block.0 as i32);
        }
        start as i32 - attended as i32
    }

    fn known(&self, id: u32) -> i32 {
        assert!((id as usize) < self.limits.vocabulary, "token id {id} is not in the vocabulary");
        id as i32
    }

    /// Adds a history to the step's; returns its start and its length.
    fn push_history(&mut self, history: &[TokenUse]) -> (i32, i32) {
        let start = self.history.len() as i32;
        self.history.extend(history.iter().map(|seen| Use {
            id: seen.id as i32,
            generated: i32::try_from(seen.generated).unwrap_or(i32::MAX),
        }));
        (start, history.len() as i32)
    }

    /// Adds biases to the step's; returns their start and their count.
    fn push_biases(&mut self, biases: Option<&Arc<[TokenBias]>>) -> (i32, i32) {
        let (start, biases) = (self.biases.len() as i32, biases.map_or(&[][..], |biases| biases));
        assert!(
            biases.len() <= MAX_BIASES,
            "{} biases of a row, and {MAX_BIASES} are the most",
            biases.len()
        );
        self.biases.extend(biases.iter().map(|one| Bias { id: one.id as i32, bias: one.bias }));
        (start, biases.len() as i32)
    }

    /// Adds a mask to the step's; returns the index of its first word, -1 without a mask.
    fn push_mask(&mut self, mask: Option<&TokenMask>) -> i32 {
        let Some(mask) = mask else { return -1 };
        let (start, words) = (self.masks.len() as i32, mask.words());
        let needed = TokenMask::words_for(self.limits.vocabulary);
        assert!(words.len() == needed, "a mask has {} words, and the vocabulary {needed}", words.len());
        self.masks.extend_from_slice(words);
        start
    }

    /// Adds the output rows of a sequence whose tokens were added last, from row `first` on.
    fn push_output(&mut self, sequence: usize, first: usize, step: &SequenceStep) {
        let row = |row: usize, sampling, logits| OutputRow { row: row as i32, sequence, sampling, logits };
        let last = self.tokens.len() - 1;
        self.first_outputs.push(self.outputs.len());
        match &step.output {
            Output::None if self.decodes => self.outputs.push(row(last, SamplingRow::GREEDY, false)),
            Output::None => {}
            Output::Logits => {
                self.outputs.extend((first..=last).map(|at| row(at, SamplingRow::GREEDY, true)))
            }
            Output::Sample { sampling, draw, history, biases, masks } => {
                let slot = step.slot.0 as usize;
                let mut wanted = sampling_row(sampling, *draw, slot);
                (wanted.history_start, wanted.history_count) = self.push_history(history);
                (wanted.bias_start, wanted.bias_count) = self.push_biases(biases.first());
                wanted.mask = self.push_mask(masks.first());
                self.sampled[slot] = true;
                self.outputs.push(row(last, wanted, false));
            }
        }
    }

    /// Writes output rows `range` to the header.
    pub(crate) fn select(&mut self, range: Range<usize>) {
        self.header.outputs = range.len() as i32;
        // Biases follow the history, and masks follow the biases. Both are complete by now.
        let biases = self.history.len() as i32;
        let masks = (size_of::<Use>() / size_of::<u32>()) as i32 * (biases + self.biases.len() as i32);
        for (at, output) in self.outputs[range].iter().enumerate() {
            self.header.output_rows[at] = output.row;
            self.header.sampling[at] = output.sampling;
            self.header.sampling[at].bias_start += biases;
            if output.sampling.mask >= 0 {
                self.header.sampling[at].mask += masks;
            }
        }
    }
}

#[cfg(test)]
mod tests;

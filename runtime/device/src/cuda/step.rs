//! What a step is to the kernels, made from what it is to the engine.

mod wire;

pub(crate) use wire::{Header, MAX_SEQUENCES, SampledRow, SequenceRow, TokenRow, Use, bytes_of};

use super::shape::ALIGNMENT;
use super::steps::STEPS_IN_FLIGHT;
use monomorph_model::{ModelSpec, Output, Step, Tokens};
use wire::{NO_SEQUENCE, SamplingRow, UNWANTED, sampling_row};

/// Bytes of all that the steps in flight are uploaded to, at most.
pub(crate) fn device_bytes(spec: &ModelSpec, context: usize) -> u64 {
    let tables = Tables::of(spec, context);
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGNMENT);
    let each = aligned(tables.header) + aligned(tables.tokens) + aligned(tables.history);
    STEPS_IN_FLIGHT as u64 * each + aligned(tables.sampled_ids)
}

/// Bytes of each table of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// Header and block table.
    pub(crate) header: u64,
    pub(crate) tokens: u64,
    pub(crate) history: u64,
    pub(crate) sampled_ids: u64,
}

impl Tables {
    pub(crate) fn of(spec: &ModelSpec, context: usize) -> Tables {
        let sequences = spec.step_sequences;
        let blocks = sequences * context.div_ceil(spec.block_tokens);
        Tables {
            header: (size_of::<Header>() + 4 * blocks) as u64,
            tokens: (spec.step_tokens * size_of::<TokenRow>()) as u64,
            history: (sequences * context.min(spec.vocabulary) * size_of::<Use>()) as u64,
            sampled_ids: (4 * sequences) as u64,
        }
    }
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) tokens: usize,
    pub(crate) sequences: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) block_tokens: usize,
    pub(crate) blocks: usize,
}

/// A row of logits that a step computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutputRow {
    /// Token row.
    pub(crate) row: i32,
    /// Sequence of the step.
    pub(crate) sequence: usize,
    /// How it is sampled.
    pub(crate) sampling: SamplingRow,
    /// Whether its logits are wanted.
    pub(crate) logits: bool,
}

/// A step, flattened to what kernels index.
#[derive(Debug)]
pub(crate) struct StepBuffer {
    limits: Limits,
    /// Slots that a token was sampled for.
    sampled: Vec<bool>,
    pub(crate) header: Box<Header>,
    pub(crate) blocks: Vec<i32>,
    pub(crate) tokens: Vec<TokenRow>,
    pub(crate) history: Vec<Use>,
    pub(crate) outputs: Vec<OutputRow>,
    /// Whether every sequence feeds one token.
    pub(crate) decodes: bool,
}

impl StepBuffer {
    pub(crate) fn new(limits: Limits) -> StepBuffer {
        let header = Header {
            tokens: 0,
            sequences: 0,
            outputs: 0,
            reserved: 0,
            output_rows: [0; MAX_SEQUENCES],
            sequence: [NO_SEQUENCE; MAX_SEQUENCES],
            sampling: [UNWANTED; MAX_SEQUENCES],
        };
        StepBuffer {
            limits,
            sampled: vec![false; limits.sequences],
            header: Box::new(header),
            blocks: Vec::new(),
            tokens: Vec::new(),
            history: Vec::new(),
            outputs: Vec::new(),
            decodes: false,
        }
    }

    /// Takes over a step. In a step that decodes, every sequence has an output row: sequence `i` row `i`.
    ///
    /// # Panics
    /// When the step breaks the limits: too many tokens or sequences, a sequence without tokens, a slot, token id,
    /// position or block id out of range, too few blocks, or a sampled token where none was. Kernels index by these without
    /// further checks.
    pub(crate) fn fill(&mut self, step: &Step) {
        let limits = self.limits;
        let count = step.sequences.len();
        assert!(count > 0, "a step without sequences");
        assert!(
            count <= limits.sequences,
            "a step of {count} sequences, and the limit is {}",
            limits.sequences
        );
        self.blocks.clear();
        self.tokens.clear();
        self.history.clear();
        self.outputs.clear();
        self.decodes = step.sequences.iter().all(|sequence| sequence.tokens.len() == 1);
        for (index, sequence) in step.sequences.iter().enumerate() {
            let (fed, position, slot) = (sequence.tokens.len(), sequence.position, sequence.slot.0 as usize);
            assert!(slot < limits.sequences, "there is no slot {slot}");
            assert!(fed > 0, "sequence {index} of the step has no tokens");
            assert!(
                fed <= limits.tokens - self.tokens.len(),
                "sequence {index} of the step goes beyond {} tokens",
                limits.tokens
            );
            assert!(
                position < limits.context && fed <= limits.context - position,
                "sequence {index} of the step has {fed} tokens at position {position}, beyond the context of {}",
                limits.context
            );
            let needed = (position + fed).div_ceil(limits.block_tokens);
            assert!(
                sequence.blocks.len() >= needed,
                "sequence {index} of the step needs {needed} blocks and has {}",
                sequence.blocks.len()
            );
            let (first_token, block_start) = (self.tokens.len() as i32, self.blocks.len() as i32);
            for block in &sequence.blocks[..needed] {
                assert!((block.0 as usize) < limits.blocks, "there is no K/V block {}", block.0);
                self.blocks.push(block.0 as i32);
            }
            let sequence_row = index as i32;
            match &sequence.tokens {
                Tokens::Known(ids) => {
                    for id in ids {
                        assert!((*id as usize) < limits.vocabulary, "token id {id} is not in the vocabulary");
                        self.tokens.push(TokenRow { id: *id as i32, sequence: sequence_row });
                    }
                }
                Tokens::Sampled => {
                    assert!(self.sampled[slot], "nothing was sampled for slot {slot}");
                    self.tokens.push(TokenRow { id: -1, sequence: sequence_row });
                }
            }
            self.header.sequence[index] = SequenceRow {
                first_token,
                count: fed as i32,
                position: position as i32,
                block_start,
                token: self.tokens[first_token as usize].id,
                slot: slot as i32,
                output: -1,
                reserved: 0,
            };
            self.want(index, slot, &sequence.output);
        }
        self.header.tokens = self.tokens.len() as i32;
        self.header.sequences = count as i32;
    }

    /// Adds the output rows of a sequence, whose tokens are the last ones.
    fn want(&mut self, sequence: usize, slot: usize, output: &Output) {
        let row = |row: usize, sampling, logits| OutputRow { row: row as i32, sequence, sampling, logits };
        let (first, last) = (self.header.sequence[sequence].first_token as usize, self.tokens.len() - 1);
        if !matches!(output, Output::None) {
            self.header.sequence[sequence].output = self.outputs.len() as i32;
        }
        match output {
            Output::None if self.decodes => self.outputs.push(row(last, UNWANTED, false)),
            Output::None => {}
            Output::Logits => self.outputs.extend((first..=last).map(|at| row(at, UNWANTED, true))),
            Output::Sample { sampling, draw, history } => {
                let start = self.history.len();
                self.history.extend(history.iter().map(|seen| Use {
                    id: seen.id as i32,
                    generated: i32::try_from(seen.generated).unwrap_or(i32::MAX),
                }));
                let mut wanted = sampling_row(sampling, *draw, slot);
                (wanted.history_start, wanted.history_count) = (start as i32, history.len() as i32);
                self.sampled[slot] = true;
                self.outputs.push(row(last, wanted, false));
            }
        }
    }

    /// Writes output rows `range` into the header.
    pub(crate) fn select(&mut self, range: std::ops::Range<usize>) {
        self.header.outputs = range.len() as i32;
        for (at, output) in self.outputs[range].iter().enumerate() {
            self.header.output_rows[at] = output.row;
            self.header.sampling[at] = output.sampling;
        }
    }
}

#[cfg(test)]
mod tests;

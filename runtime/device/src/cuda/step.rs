//! The step header: `templates/cuda/lib/step.cuh`, byte for byte, and how it is made from a step.

use super::shape::ALIGNMENT;
use super::steps::STEPS_IN_FLIGHT;
use monomorph_model::{ModelSpec, Output, Step, Tokens};
use monomorph_sampling::{MAX_TOP_LOGPROBS, Sampling};

/// Sequences (and outputs) one step may carry: MAX_SEQUENCES.
pub(crate) const MAX_SEQUENCES: usize = 128;
const MAX_TOP: usize = MAX_TOP_LOGPROBS as usize;

/// Plain numbers without gaps: they may be looked at as bytes.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding, and every bit pattern is a value.
pub(crate) unsafe trait Wire: Copy {}

/// The bytes of some values.
pub(crate) fn bytes_of<T: Wire>(values: &[T]) -> &[u8] {
    // SAFETY: no padding, by the trait's promise; the length is the slice's own.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct SequenceRow {
    pub(crate) first_token: i32,
    pub(crate) count: i32,
    pub(crate) position: i32,
    pub(crate) block_start: i32,
    /// Decode only; -1 is the id last sampled for the slot.
    pub(crate) token: i32,
    pub(crate) slot: i32,
    /// Row among the outputs, or -1.
    pub(crate) output: i32,
    reserved: i32,
}

/// How one output row is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct SamplingRow {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    top_k: u32,
    top_logprobs: i32,
    seed: u64,
    draw: u64,
    pub(crate) slot: i32,
    pub(crate) history_start: i32,
    pub(crate) history_count: i32,
    reserved: i32,
}

/// What stands before the block table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) tokens: i32,
    pub(crate) sequences: i32,
    pub(crate) outputs: i32,
    reserved: i32,
    pub(crate) output_rows: [i32; MAX_SEQUENCES],
    pub(crate) sequence: [SequenceRow; MAX_SEQUENCES],
    pub(crate) sampling: [SamplingRow; MAX_SEQUENCES],
}

/// One token row of a prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct TokenRow {
    pub(crate) id: i32,
    pub(crate) sequence: i32,
}

/// A token that a penalty looks at; the device's layout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Use {
    pub(crate) id: i32,
    pub(crate) generated: i32,
}

/// What was sampled for one output row.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SampledRow {
    pub(crate) id: i32,
    pub(crate) logprob: f32,
    pub(crate) top_count: i32,
    reserved: i32,
    pub(crate) top_id: [i32; MAX_TOP],
    pub(crate) top_logprob: [f32; MAX_TOP],
}

// SAFETY: 4-byte fields, or 8-byte ones at multiples of 8, without gaps: the assertions below add them up.
unsafe impl Wire for SequenceRow {}
// SAFETY: as above.
unsafe impl Wire for Header {}
// SAFETY: as above.
unsafe impl Wire for TokenRow {}
// SAFETY: as above.
unsafe impl Wire for Use {}
// SAFETY: a plain number.
unsafe impl Wire for i32 {}

const _: () = {
    assert!(size_of::<SequenceRow>() == 32);
    assert!(size_of::<SamplingRow>() == 64);
    assert!(std::mem::offset_of!(SamplingRow, seed) == 32);
    assert!(std::mem::offset_of!(SamplingRow, slot) == 48);
    assert!(size_of::<Header>() == 16 + MAX_SEQUENCES * (4 + 32 + 64));
    assert!(std::mem::offset_of!(Header, sequence) == 16 + 4 * MAX_SEQUENCES);
    assert!(size_of::<TokenRow>() == 8 && size_of::<Use>() == 8);
    assert!(size_of::<SampledRow>() == 16 + 8 * MAX_TOP);
};

impl SampledRow {
    /// Reads one back.
    pub(crate) fn read(bytes: &[u8]) -> SampledRow {
        let word = |at: usize| {
            let bytes = bytes[4 * at..][..4].try_into().unwrap_or_default();
            i32::from_le_bytes(bytes)
        };
        SampledRow {
            id: word(0),
            logprob: f32::from_bits(word(1) as u32),
            top_count: word(2),
            reserved: 0,
            top_id: std::array::from_fn(|at| word(4 + at)),
            top_logprob: std::array::from_fn(|at| f32::from_bits(word(4 + MAX_TOP + at) as u32)),
        }
    }
}

/// For rows that nobody asked a token of: the largest logit, told to nobody.
const UNWANTED: SamplingRow = SamplingRow {
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    top_k: 0,
    top_logprobs: -1,
    seed: 0,
    draw: 0,
    slot: -1,
    history_start: 0,
    history_count: 0,
    reserved: 0,
};

const NO_SEQUENCE: SequenceRow = SequenceRow {
    first_token: 0,
    count: 0,
    position: 0,
    block_start: 0,
    token: 0,
    slot: -1,
    output: -1,
    reserved: 0,
};

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
        assert!(count <= limits.sequences, "a step of {count} sequences, and the limit is {}", limits.sequences);
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

fn sampling_row(sampling: &Sampling, draw: u64, slot: usize) -> SamplingRow {
    SamplingRow {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        top_k: sampling.top_k,
        top_logprobs: sampling.top_logprobs.map_or(-1, i32::from),
        seed: sampling.seed,
        draw,
        slot: slot as i32,
        history_start: 0,
        history_count: 0,
        reserved: 0,
    }
}

#[cfg(test)]
mod tests;

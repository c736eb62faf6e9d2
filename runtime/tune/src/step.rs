//! The steps that are measured: their headers and token rows.

use monomorph_abi::bytes_of;
use monomorph_abi::images::BeforeBlocks;
use monomorph_abi::sliding::{SlidingStarts, blocks_at};
use monomorph_abi::step::{Header, MAX_SEQUENCES, SamplingRow, SequenceRow, TokenRow};

/// A step as it is uploaded.
pub(crate) struct Step {
    /// The header, and behind it where tables begin of layers with a sliding window, and the block table:
    /// such layers have all blocks of the others.
    pub(crate) header: Vec<u8>,
    /// The token rows of a prefill.
    pub(crate) rows: Vec<u8>,
    /// K/V blocks that it names.
    pub(crate) blocks: usize,
    /// Token rows of the step.
    pub(crate) tokens: usize,
    /// Number of sequences of the step.
    pub(crate) sequences: usize,
    /// Rows whose logits are wanted.
    pub(crate) outputs: usize,
}

/// An id for each sequence and position, so that rows choose experts of their own; all are in any vocabulary.
fn token_id(index: usize) -> i32 {
    (11 + 5 * index % 499) as i32
}

impl Step {
    /// Each of `rows` sequences feeds one token after `context` others.
    pub(crate) fn decode(rows: usize, context: usize, block_tokens: usize) -> Step {
        let each = (context + 1).div_ceil(block_tokens);
        let sequences: Vec<SequenceRow> = (0..rows)
            .map(|row| SequenceRow {
                first_token: row as i32,
                count: 1,
                position: context as i32,
                block_start: (row * each) as i32,
                token: token_id(row),
                slot: row as i32,
                ..SequenceRow::NONE
            })
            .collect();
        Step::new(rows, &sequences, rows, rows * each, Vec::new())
    }

    /// One prompt with nothing cached.
    pub(crate) fn prefill(tokens: usize, block_tokens: usize) -> Step {
        let rows: Vec<TokenRow> = (0..tokens).map(|at| TokenRow { id: token_id(at), sequence: 0 }).collect();
        let (count, token) = (tokens as i32, token_id(0));
        let prompt = SequenceRow { count, token, slot: 0, ..SequenceRow::NONE };
        Step::new(tokens, &[prompt], 0, tokens.div_ceil(block_tokens), bytes_of(&rows).to_vec())
    }

    fn new(tokens: usize, rows: &[SequenceRow], outputs: usize, blocks: usize, ids: Vec<u8>) -> Step {
        let header = Header {
            tokens: tokens as i32,
            sequences: rows.len() as i32,
            outputs: outputs as i32,
            blocks_at: blocks_at(true, BeforeBlocks::Nothing) as i32,
            output_rows: std::array::from_fn(|at| if at < outputs { at as i32 } else { 0 }),
            sequence: std::array::from_fn(|at| rows.get(at).copied().unwrap_or(SequenceRow::NONE)),
            sampling: std::array::from_fn(|at| SamplingRow {
                slot: if at < outputs { at as i32 } else { -1 },
                seed: at as u64,
                ..SamplingRow::GREEDY
            }),
        };
        assert!(rows.len() <= MAX_SEQUENCES && outputs <= MAX_SEQUENCES, "a step carries no more");
        let starts = SlidingStarts { start: header.sequence.map(|row| row.block_start) };
        let table: Vec<i32> = (0..blocks as i32).collect();
        let header = [bytes_of(&[header]), bytes_of(&[starts]), bytes_of(&table)].concat();
        Step { header, rows: ids, blocks, tokens, sequences: rows.len(), outputs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_names_every_block_of_its_sequences_once() {
        let step = Step::decode(3, 128, 64);
        assert_eq!((step.tokens, step.sequences, step.outputs, step.blocks), (3, 3, 3, 9));
        assert_eq!(step.header.len(), blocks_at(true, BeforeBlocks::Nothing) + 4 * 9);
        let step = Step::prefill(130, 64);
        assert_eq!((step.tokens, step.sequences, step.outputs, step.blocks), (130, 1, 0, 3));
        assert_eq!(step.rows.len(), 130 * size_of::<TokenRow>());
    }
}

//! The fake K/V memory: token ids where a model has keys and values, and the checks of a step's contract.

use monomorph_model::{BlockId, ModelSpec, SequenceStep, Slot, Step};
use monomorph_sampling::{Sampling, TokenUse};
use std::collections::{HashMap, HashSet};

/// Blocks of token ids, and the tokens that each slot was fed.
#[derive(Debug)]
pub(super) struct Memory {
    block_tokens: usize,
    blocks: usize,
    /// Grown as blocks are first used; `None` where nothing was written.
    cells: Vec<Option<u32>>,
    fed: HashMap<Slot, Vec<u32>>,
    /// Which slot wrote which block in the step at hand.
    writers: HashMap<BlockId, Slot>,
}

impl Memory {
    pub fn new(block_tokens: usize, blocks: usize) -> Memory {
        Memory { block_tokens, blocks, cells: Vec::new(), fed: HashMap::new(), writers: HashMap::new() }
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.writers.clear();
    }

    /// Writes a row's tokens into its blocks and returns the sequence as read back from them.
    pub fn feed(&mut self, row: &SequenceStep) -> Vec<u32> {
        let slot = row.slot;
        let end = row.position + row.tokens.len();
        let needed = end.div_ceil(self.block_tokens);
        assert_eq!(row.blocks.len(), needed, "{slot:?} needs {needed} blocks for {end} tokens");
        let distinct: HashSet<BlockId> = row.blocks.iter().copied().collect();
        assert_eq!(distinct.len(), needed, "{slot:?} has a block twice: {:?}", row.blocks);
        for block in &row.blocks {
            let (index, blocks) = (block.0 as usize, self.blocks);
            assert!(index < blocks, "{slot:?} has {block:?} of a memory of {blocks} blocks");
            let cells = (index + 1) * self.block_tokens;
            if self.cells.len() < cells {
                self.cells.resize(cells, None);
            }
        }

        // Position 0 begins a sequence; any other must go on where the slot was left.
        let mut fed = self.fed.remove(&slot).unwrap_or_default();
        if row.position == 0 {
            fed.clear();
        }
        assert_eq!(row.position, fed.len(), "{slot:?} goes on at another position than it was left");
        fed.extend_from_slice(&row.tokens);

        for (position, &token) in fed.iter().enumerate().skip(row.position) {
            let block = row.blocks[position / self.block_tokens];
            let writer = *self.writers.entry(block).or_insert(slot);
            assert_eq!(writer, slot, "two sequences write to {block:?} in one step");
            let cell = self.cell(block, position);
            self.cells[cell] = Some(token);
        }
        let read = (0..end).map(|position| {
            let block = row.blocks[position / self.block_tokens];
            let found = self.cells[self.cell(block, position)];
            let expected = fed[position];
            assert_eq!(found, Some(expected), "{slot:?} reads position {position} from {block:?}");
            expected
        });
        let context = read.collect();
        self.fed.insert(slot, fed);
        context
    }

    fn cell(&self, block: BlockId, position: usize) -> usize {
        block.0 as usize * self.block_tokens + position % self.block_tokens
    }
}

/// Checks what a step promises about itself.
pub(super) fn check_step(step: &Step, spec: &ModelSpec) {
    let rows = &step.sequences;
    assert!(!rows.is_empty(), "a step without sequences");
    assert!(rows.len() <= spec.step_sequences, "{} sequences in a step", rows.len());
    let tokens: usize = rows.iter().map(|row| row.tokens.len()).sum();
    assert!(tokens <= spec.step_tokens, "{tokens} tokens in a step of at most {}", spec.step_tokens);
    let slots: HashSet<Slot> = rows.iter().map(|row| row.slot).collect();
    assert_eq!(slots.len(), rows.len(), "a slot stands in a step twice");
    for row in rows {
        let slot = row.slot;
        assert!((slot.0 as usize) < spec.step_sequences, "{slot:?} of {}", spec.step_sequences);
        assert!(!row.tokens.is_empty(), "{slot:?} is fed nothing");
        assert!(row.position + row.tokens.len() <= spec.context, "{slot:?} is fed beyond the context");
        for &id in &row.tokens {
            assert!((id as usize) < spec.vocabulary, "{slot:?} is fed token {id}");
        }
    }
}

/// Checks the history handed to the sampler against the context, of which `draw` tokens were generated.
pub(super) fn check_history(context: &[u32], draw: u64, sampling: &Sampling, history: &[TokenUse]) {
    if !sampling.needs_history() {
        assert!(history.is_empty(), "a history that the sampler did not ask for");
        return;
    }
    let prompt = context.len() - draw as usize;
    let mut expected: HashMap<u32, u32> = HashMap::new();
    for (position, &id) in context.iter().enumerate() {
        *expected.entry(id).or_default() += u32::from(position >= prompt);
    }
    let found: HashMap<u32, u32> = history.iter().map(|seen| (seen.id, seen.generated)).collect();
    assert_eq!(found.len(), history.len(), "a token stands in the history twice");
    assert_eq!(found, expected, "the history is not that of the context");
}

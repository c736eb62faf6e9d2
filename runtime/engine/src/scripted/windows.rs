//! The blocks of a scripted model's layers with a sliding window: token ids again, of which only those within
//! the window are read.

use super::cells;
use monomorph_abi::sliding::Sliding;
use monomorph_model::{ModelSpec, SequenceStep, SlidingId, SlidingSpec, SlidingTable, Slot};
use std::collections::{HashMap, HashSet, VecDeque};

/// Token ids in place of keys and values, and what the steps in flight hold.
#[derive(Debug)]
pub(super) struct Windows {
    it: Sliding,
    /// `None` where nothing was written.
    cells: Vec<Option<u32>>,
    /// The tables of the last step, by slot.
    tables: HashMap<Slot, SlidingTable>,
    /// Whose rows read each block, and whether they write it too: of each step in flight, oldest first.
    steps: VecDeque<HashMap<SlidingId, Vec<(Slot, bool)>>>,
}

impl Windows {
    pub fn new(spec: &ModelSpec, sliding: SlidingSpec, blocks: usize) -> Windows {
        let it = sliding.of(spec);
        let cells = vec![None; blocks * it.block_tokens];
        Windows { it, cells, tables: HashMap::new(), steps: VecDeque::new() }
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.steps.push_back(HashMap::new());
    }

    /// Ends the oldest step in flight.
    pub fn collect(&mut self) {
        self.steps.pop_front();
    }

    fn blocks(&self) -> usize {
        self.cells.len() / self.it.block_tokens
    }

    fn cell(&self, table: &SlidingTable, position: usize) -> usize {
        let block = table.blocks[position / self.it.block_tokens - table.first];
        block.0 as usize * self.it.block_tokens + position % self.it.block_tokens
    }

    /// Writes a row's tokens into its blocks and reads back what it attends to; `context` is the sequence.
    pub fn feed(&mut self, row: &SequenceStep, table: &SlidingTable, context: &[u32]) {
        let (slot, position) = (row.slot, row.position);
        assert_eq!(table.first, self.it.first(position), "{slot:?} at {position} begins with another block");
        let (end, all) = (table.first + table.blocks.len(), row.blocks.len());
        assert_eq!(end, all, "{slot:?} has {all} blocks, and {end} of layers with a sliding window");
        let distinct: HashSet<SlidingId> = table.blocks.iter().copied().collect();
        assert_eq!(distinct.len(), table.blocks.len(), "{slot:?} has a block twice: {table:?}");
        let blocks = self.blocks();
        assert!(table.blocks.iter().all(|block| (block.0 as usize) < blocks), "{table:?} of {blocks} blocks");
        self.hold(row, table);
        for (position, token) in context.iter().enumerate().skip(position) {
            let cell = self.cell(table, position);
            self.cells[cell] = Some(*token);
        }
        let attended = (position + 1).saturating_sub(self.it.window);
        for (position, token) in context.iter().enumerate().skip(attended) {
            let found = self.cells[self.cell(table, position)];
            assert_eq!(found, Some(*token), "{slot:?} reads position {position} of {table:?}");
        }
        self.tables.insert(slot, table.clone());
    }

    /// Spoils what a row's step may write behind its context.
    pub fn spoil(&mut self, slot: Slot, positions: std::ops::Range<usize>) {
        let Some(table) = self.tables.get(&slot) else { return };
        for position in positions {
            let cell = self.cell(table, position);
            self.cells[cell] = None;
        }
    }

    /// Holds a row's blocks until its step is collected, as those of the other layers are held.
    fn hold(&mut self, row: &SequenceStep, table: &SlidingTable) {
        let (slot, last) = (row.slot, self.steps.len().saturating_sub(1));
        for (index, block) in (table.first..).zip(&table.blocks) {
            let writes = (index + 1) * self.it.block_tokens > row.position;
            for (at, step) in self.steps.iter().enumerate() {
                for &(other, wrote) in step.get(block).into_iter().flatten() {
                    let sound = other == slot || !(wrote || (writes && at == last));
                    assert!(
                        sound,
                        "{slot:?} is given {block:?} while a step in flight holds it for {other:?}"
                    );
                }
            }
        }
        let step = self.steps.back_mut().expect("a row of a step");
        for (index, &block) in (table.first..).zip(&table.blocks) {
            let writes = (index + 1) * self.it.block_tokens > row.position;
            step.entry(block).or_default().push((slot, writes));
        }
    }

    fn cells_between_steps(&self, block: SlidingId) -> std::ops::Range<usize> {
        assert!(self.steps.is_empty(), "{block:?} is copied while a step is in flight");
        let (index, blocks) = (block.0 as usize, self.blocks());
        assert!(index < blocks, "{block:?} of a memory of {blocks} blocks");
        index * self.it.block_tokens..(index + 1) * self.it.block_tokens
    }

    /// The ids that a block holds, as bytes.
    pub fn read(&self, block: SlidingId, into: &mut [u8]) {
        let cells = self.cells_between_steps(block);
        for (out, cell) in into.as_chunks_mut().0.iter_mut().zip(&self.cells[cells]) {
            *out = cells::to_bytes(*cell);
        }
    }

    /// Makes a block what was read of one.
    pub fn write(&mut self, block: SlidingId, from: &[u8]) {
        let cells = self.cells_between_steps(block);
        for (cell, id) in self.cells[cells].iter_mut().zip(from.as_chunks().0) {
            *cell = cells::from_bytes(*id);
        }
    }
}

//! The blocks of one sequence, in the order of its tokens.

use crate::pool::{Block, BlockPool, PoolError};
use std::ops::Range;

/// The pool has too few free blocks; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Further blocks needed.
    pub needed: usize,
    /// Blocks there are.
    pub free: usize,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} more blocks are needed and {} are free", self.needed, self.free)
    }
}

impl std::error::Error for Shortage {}

/// The blocks of one sequence on the device.
///
/// A table does not give its blocks back when dropped, because it does not hold the pool: call
/// [`BlockTable::release`].
#[derive(Debug)]
#[must_use = "a table that is dropped keeps its blocks in use for ever"]
pub(crate) struct BlockTable {
    block_tokens: usize,
    blocks: Vec<Block>,
}

impl BlockTable {
    /// An empty table over blocks of `block_tokens` (at least 1) tokens.
    pub fn new(block_tokens: usize) -> BlockTable {
        BlockTable { block_tokens: block_tokens.max(1), blocks: Vec::new() }
    }

    /// The blocks, in the order of the tokens they hold.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Number of tokens that a block holds.
    pub(crate) fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Takes so many blocks; all of them or none.
    ///
    /// # Errors
    /// When the pool has too few.
    pub fn grow(&mut self, needed: usize, pool: &mut BlockPool) -> Result<(), Shortage> {
        if needed > pool.free() {
            return Err(Shortage { needed, free: pool.free() });
        }
        self.blocks.extend((0..needed).map_while(|_| pool.allocate()));
        Ok(())
    }

    /// Releases some blocks; those behind them move up.
    ///
    /// # Errors
    /// When a block is not in use.
    pub fn remove(&mut self, range: Range<usize>, pool: &mut BlockPool) -> Result<(), PoolError> {
        self.blocks.drain(range).try_for_each(|block| pool.release(block).map(drop))
    }

    /// Gives all blocks back.
    ///
    /// # Errors
    /// When a block is not in use: the table and the pool do not belong together.
    pub fn release(&mut self, pool: &mut BlockPool) -> Result<(), PoolError> {
        // From the end, so that the pool's stack hands the next sequence blocks in order.
        while let Some(&block) = self.blocks.last() {
            pool.release(block)?;
            self.blocks.pop();
        }
        Ok(())
    }

    /// Moves all blocks into another table, to be released later, and leaves this one empty.
    pub fn take(&mut self) -> BlockTable {
        BlockTable { block_tokens: self.block_tokens, blocks: std::mem::take(&mut self.blocks) }
    }

    /// Adds a shared block behind the others, full of tokens that will not be written again.
    ///
    /// # Errors
    /// When the block is not in use.
    pub(crate) fn share(&mut self, block: Block, pool: &mut BlockPool) -> Result<(), PoolError> {
        pool.share(block)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Replaces a block by a shared one.
    ///
    /// # Errors
    /// When one of them is not in use.
    pub(crate) fn replace(&mut self, at: usize, block: Block, pool: &mut BlockPool) -> Result<(), PoolError> {
        pool.share(block)?;
        pool.release(std::mem::replace(&mut self.blocks[at], block))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_takes_nothing_and_says_what_there_is() {
        let mut pool = BlockPool::new(3);
        let mut table = BlockTable::new(4);
        table.grow(1, &mut pool).expect("there are three");
        let short = table.grow(3, &mut pool).expect_err("two are left");
        assert_eq!(short.to_string(), "3 more blocks are needed and 2 are free");
        assert_eq!((table.blocks(), pool.free()), (&[Block(0)][..], 2));
        table.release(&mut pool).expect("they belong together");
    }

    #[test]
    fn a_block_holds_a_token_at_least() {
        assert_eq!([0, 1, 16].map(|tokens| BlockTable::new(tokens).block_tokens()), [1, 1, 16]);
    }
}

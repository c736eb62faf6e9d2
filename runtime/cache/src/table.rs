//! The blocks of one sequence, in the order of its tokens.

use crate::admission::blocks_for;
use crate::pool::{Block, BlockPool, PoolError};

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

/// Which block holds which tokens of one sequence: token `p` lives in block `blocks()[p / block_tokens]`.
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

    /// The blocks that hold the first `tokens` tokens, as many of them as there are.
    pub fn prefix(&self, tokens: usize) -> &[Block] {
        &self.blocks[..blocks_for(tokens, self.block_tokens).min(self.blocks.len())]
    }

    /// Tokens of a block.
    pub(crate) fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Takes blocks until `tokens` tokens fit; all of them or none.
    ///
    /// # Errors
    /// When the pool has too few.
    pub fn grow(&mut self, tokens: usize, pool: &mut BlockPool) -> Result<(), Shortage> {
        let needed = blocks_for(tokens, self.block_tokens).saturating_sub(self.blocks.len());
        if needed > pool.free() {
            return Err(Shortage { needed, free: pool.free() });
        }
        self.blocks.extend((0..needed).map_while(|_| pool.allocate()));
        Ok(())
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

    /// Moves all blocks into another table and leaves this one empty: for whoever gives them back later.
    pub fn take(&mut self) -> BlockTable {
        BlockTable { block_tokens: self.block_tokens, blocks: std::mem::take(&mut self.blocks) }
    }

    /// Adds a block behind the others that somebody else uses too, for as many tokens that nobody will write.
    ///
    /// # Errors
    /// When the block is not in use.
    pub(crate) fn share(&mut self, block: Block, pool: &mut BlockPool) -> Result<(), PoolError> {
        pool.share(block)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Puts a block that somebody else uses too in the place of another.
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
    fn the_prefix_is_exactly_the_blocks_that_tokens_need() {
        let mut pool = BlockPool::new(8);
        let mut table = BlockTable::new(4);
        table.grow(18, &mut pool).unwrap();
        let lengths: Vec<usize> = [0, 1, 4, 5, 18, 20, 99].map(|tokens| table.prefix(tokens).len()).into();
        assert_eq!(lengths, [0, 1, 1, 2, 5, 5, 5]);
        table.release(&mut pool).unwrap();
    }
}

//! The pool: which blocks are free and how often the others are used.

/// Index of a K/V block, below the pool's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(pub u32);

/// Index of a K/V block of the layers with a sliding window, below the capacity of their pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlidingBlock(pub u32);

impl SlidingBlock {
    pub(crate) fn of(Block(block): Block) -> SlidingBlock {
        SlidingBlock(block)
    }

    pub(crate) fn in_pool(self) -> Block {
        Block(self.0)
    }
}

/// The state of a block after one of its uses ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// It is free.
    Freed,
    /// It is still in use.
    Shared {
        /// Uses left.
        uses: u32,
    },
}

/// Misuse of the pool: the pool is unchanged by the call that returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The block is not of this pool.
    OutOfRange {
        /// Block that the caller named.
        block: Block,
        /// Blocks of the pool.
        capacity: usize,
    },
    /// The block is free, so it can be neither shared nor released.
    NotInUse(Block),
    /// A block is needed that was said to be there, and there is none.
    Exhausted,
}

impl std::fmt::Display for PoolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PoolError::OutOfRange { block, capacity } => {
                write!(f, "block {} is not of this pool of {capacity}", block.0)
            }
            PoolError::NotInUse(block) => write!(f, "block {} is not in use", block.0),
            PoolError::Exhausted => f.write_str("there is no block where there was to be one"),
        }
    }
}

impl std::error::Error for PoolError {}

/// Free list and use counts of all blocks.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    uses: Vec<u32>,
    /// A stack: the block freed last is allocated first, while it may still be in a device's caches.
    free: Vec<Block>,
}

impl BlockPool {
    /// A pool of `capacity` free blocks; more than a [`Block`] can name are not managed.
    pub fn new(capacity: usize) -> BlockPool {
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        // Reversed, so that low blocks are allocated first: an idle server touches little memory.
        BlockPool { uses: vec![0; capacity as usize], free: (0..capacity).rev().map(Block).collect() }
    }

    /// All blocks, free or not.
    pub fn capacity(&self) -> usize {
        self.uses.len()
    }

    /// Blocks that can be allocated now.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How often a block is used; 0 for a free one.
    ///
    /// # Errors
    /// When the block is not of this pool.
    pub fn uses(&self, block: Block) -> Result<u32, PoolError> {
        let capacity = self.capacity();
        self.uses.get(block.0 as usize).copied().ok_or(PoolError::OutOfRange { block, capacity })
    }

    /// Takes a free block, used once from now on; `None` when there is none.
    pub fn allocate(&mut self) -> Option<Block> {
        let block = self.free.pop()?;
        self.uses[block.0 as usize] = 1;
        Some(block)
    }

    /// Adds a use to a block that is in use; returns the new count.
    ///
    /// # Errors
    /// When the block is free or not of this pool.
    pub fn share(&mut self, block: Block) -> Result<u32, PoolError> {
        let uses = self.in_use(block)?;
        *uses += 1;
        Ok(*uses)
    }

    /// Ends one use of a block.
    ///
    /// # Errors
    /// When the block is free or not of this pool.
    pub fn release(&mut self, block: Block) -> Result<Release, PoolError> {
        let uses = self.in_use(block)?;
        *uses -= 1;
        match *uses {
            0 => {
                self.free.push(block);
                Ok(Release::Freed)
            }
            uses => Ok(Release::Shared { uses }),
        }
    }

    fn in_use(&mut self, block: Block) -> Result<&mut u32, PoolError> {
        let capacity = self.uses.len();
        match self.uses.get_mut(block.0 as usize) {
            None => Err(PoolError::OutOfRange { block, capacity }),
            Some(0) => Err(PoolError::NotInUse(block)),
            Some(uses) => Ok(uses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_and_change_nothing() {
        let mut pool = BlockPool::new(2);
        assert_eq!(pool.release(Block(0)), Err(PoolError::NotInUse(Block(0))));
        assert_eq!(pool.share(Block(1)), Err(PoolError::NotInUse(Block(1))));
        assert_eq!(pool.share(Block(2)), Err(PoolError::OutOfRange { block: Block(2), capacity: 2 }));
        assert_eq!((pool.free(), pool.capacity()), (2, 2));
        let beyond = PoolError::OutOfRange { block: Block(2), capacity: 2 };
        assert_eq!(beyond.to_string(), "block 2 is not of this pool of 2");
        assert_eq!(PoolError::NotInUse(Block(1)).to_string(), "block 1 is not in use");
        assert_eq!(PoolError::Exhausted.to_string(), "there is no block where there was to be one");
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_user() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        assert_eq!(pool.share(block), Ok(2));
        assert_eq!(pool.release(block), Ok(Release::Shared { uses: 1 }));
        assert_eq!(pool.allocate(), None);
        assert_eq!(pool.release(block), Ok(Release::Freed));
        assert_eq!(pool.allocate(), Some(block));
    }
}

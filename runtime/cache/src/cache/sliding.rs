//! Blocks of layers with a sliding window: taken as a sequence is fed, and given back as soon as nothing it
//! will be fed attends to them.
//!
//! The index keeps them with the nodes of its prefixes as long as there is room: a prefix can be gone on from
//! only where the blocks that the next token attends to are still there. A lease has, of the blocks that the
//! index knows on its path, those that the index keeps, and no others of the same tokens. So no more of these
//! blocks are in use than of the other layers', if all of those are on the device.

use super::{Lease, PrefixCache};
use crate::admission::blocks_for;
use crate::index::{Index, Node};
use crate::pool::{BlockPool, PoolError, Release, SlidingBlock};
use crate::table::Shortage;
use monomorph_abi::sliding::Sliding;

/// The blocks of a sequence that layers with a sliding window still read.
#[derive(Debug, Default)]
pub(super) struct LeasedWindow {
    /// Which block of the sequence is the first of them.
    first: usize,
    blocks: Vec<SlidingBlock>,
}

impl LeasedWindow {
    fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    fn at(&mut self, index: usize) -> Option<&mut SlidingBlock> {
        self.blocks.get_mut(index.checked_sub(self.first)?)
    }
}

/// All of these blocks.
#[derive(Debug)]
pub(super) struct SlidingPool {
    it: Sliding,
    pool: BlockPool,
}

impl Lease {
    /// The blocks of layers with a sliding window: which of the sequence's blocks is the first of them, and
    /// they.
    pub fn sliding(&self) -> (usize, &[SlidingBlock]) {
        (self.window.first, &self.window.blocks)
    }
}

impl PrefixCache {
    /// The same with `blocks` blocks of layers that have this sliding window.
    #[must_use]
    pub fn with_sliding(self, it: Sliding, blocks: usize) -> PrefixCache {
        PrefixCache { sliding: Some(SlidingPool { it, pool: BlockPool::new(blocks) }), ..self }
    }

    /// All blocks of layers with a sliding window.
    pub fn sliding_capacity(&self) -> usize {
        self.sliding.as_ref().map_or(0, |all| all.pool.capacity())
    }

    /// Those of them that sequences can get: free ones, and those that only the index holds.
    pub fn sliding_available(&self) -> usize {
        self.sliding.as_ref().map_or(0, |all| all.pool.free() + self.index.idle_windows())
    }

    /// How many of them only the index holds.
    pub fn sliding_cached(&self) -> usize {
        self.index.idle_windows()
    }

    /// How often such a block is used, by leases and by the index; 0 for a free one.
    ///
    /// # Errors
    /// When the block is not of this cache.
    pub fn sliding_uses(&self, block: SlidingBlock) -> Result<u32, PoolError> {
        let none = PoolError::OutOfRange { block: block.in_pool(), capacity: 0 };
        self.sliding.as_ref().map_or(Err(none), |all| all.pool.uses(block.in_pool()))
    }

    /// Blocks of layers with a sliding window that [`Self::grow_sliding`] would take.
    pub fn sliding_due(&self, lease: &Lease, tokens: usize) -> usize {
        match self.sliding {
            Some(_) => blocks_for(tokens, self.block_tokens).saturating_sub(lease.window.end()),
            None => 0,
        }
    }

    /// Takes blocks of layers with a sliding window until `tokens` tokens of the sequence fit; all of them or
    /// none. Others' prefixes may become shorter by that: those whose windows were used longest ago.
    ///
    /// # Errors
    /// When there are too few.
    pub fn grow_sliding(&mut self, lease: &mut Lease, tokens: usize) -> Result<(), Shortage> {
        let (needed, free) = (self.sliding_due(lease, tokens), self.sliding_available());
        if needed > free {
            return Err(Shortage { needed, free });
        }
        for _ in 0..needed {
            let block = self.take_sliding().ok_or(Shortage { needed, free })?;
            lease.window.blocks.push(block);
        }
        Ok(())
    }

    /// Gives back what no token attends to that follows the first `done` of a sequence. These are fed for
    /// good: none of them is a draft that may not hold.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn slide(&mut self, lease: &mut Lease, done: usize) -> Result<(), PoolError> {
        let Some(all) = &self.sliding else { return Ok(()) };
        let (first, window) = (all.it.first(done), &lease.window);
        let passed = all.it.passed(window.first, window.blocks.len(), done);
        for block in lease.window.blocks.drain(..passed) {
            give_back(block, self.sliding.as_mut(), &mut self.index)?;
        }
        lease.window.first = lease.window.first.max(first);
        Ok(())
    }

    /// Gives a lease of [`PrefixCache::admit_blocks`] what a sequence attends to that was fed `done` tokens
    /// and goes on from a copy: the index's blocks where it has them, else others, which the index keeps too.
    /// Returns the first of them, and each that has to be written from the copy.
    ///
    /// # Errors
    /// On an accounting error, or when there are too few.
    pub fn restore_sliding(
        &mut self,
        lease: &mut Lease,
        done: usize,
    ) -> Result<(usize, Vec<Option<SlidingBlock>>), PoolError> {
        let Some(all) = &self.sliding else { return Ok((0, Vec::new())) };
        let (first, end) = (all.it.first(done), blocks_for(done, self.block_tokens));
        let path = self.path(lease);
        // All that the index has before any is taken: taking might evict them.
        let kept: Vec<Option<SlidingBlock>> = (first..end)
            .map(|at| path.get(at).and_then(|node| self.share_window(*node)).transpose())
            .collect::<Result<_, _>>()?;
        lease.window.first = first;
        let mut written = Vec::with_capacity(kept.len());
        for (at, kept) in (first..).zip(kept) {
            let block = match kept {
                Some(kept) => kept,
                None => self.take_sliding().ok_or(PoolError::Exhausted)?,
            };
            lease.window.blocks.push(block);
            written.push(kept.is_none().then_some(block));
            if let (None, Some(node)) = (kept, path.get(at)) {
                self.keep_window(*node, block)?;
            }
        }
        Ok((first, written))
    }

    /// Nodes of the blocks of a lease that the index knows, from the first on.
    fn path(&self, lease: &Lease) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            std::iter::successors(lease.path, |node| self.index.parent(*node)).collect();
        nodes.reverse();
        nodes
    }

    /// How many blocks at the end of a prefix of so many must have their windows kept; 0 where no layer has
    /// one.
    pub(super) fn windows_behind(&self, blocks: usize) -> usize {
        self.sliding.as_ref().map_or(0, |all| all.it.behind(blocks))
    }

    /// Gives a lease what the token after a cached prefix of these nodes attends to.
    pub(super) fn lease_windows(&mut self, lease: &mut Lease, nodes: &[Node]) -> Result<(), PoolError> {
        let first = nodes.len() - self.windows_behind(nodes.len());
        if self.sliding.is_some() {
            lease.window.first = first;
        }
        for node in &nodes[first..] {
            let block = self.share_window(*node).ok_or(PoolError::Exhausted)??;
            lease.window.blocks.push(block);
        }
        Ok(())
    }

    /// The index comes to know block `at` of a lease by this node: it keeps the lease's window, or has one
    /// already that becomes the lease's.
    pub(super) fn index_window(&mut self, lease: &mut Lease, at: usize, node: Node) -> Result<(), PoolError> {
        let Some(own) = lease.window.at(at) else { return Ok(()) };
        match self.share_window(node) {
            Some(kept) => {
                let own = std::mem::replace(own, kept?);
                give_back(own, self.sliding.as_mut(), &mut self.index)
            }
            None => {
                let own = *own;
                self.keep_window(node, own)
            }
        }
    }

    /// Gives back all of a lease's.
    pub(super) fn release_windows(&mut self, lease: &mut Lease) -> Result<(), PoolError> {
        let LeasedWindow { blocks, .. } = std::mem::take(&mut lease.window);
        // From the end, so that the next sequence gets them in order.
        blocks
            .into_iter()
            .rev()
            .try_for_each(|block| give_back(block, self.sliding.as_mut(), &mut self.index))
    }

    /// The index no longer keeps this block.
    pub(super) fn forget_window(&mut self, block: SlidingBlock) {
        if let Some(all) = &mut self.sliding {
            // The index was one of its users.
            all.pool.release(block.in_pool()).expect("the index holds what it keeps");
        }
    }

    /// Another use of the block that the index keeps with a node, if it keeps one.
    fn share_window(&mut self, node: Node) -> Option<Result<SlidingBlock, PoolError>> {
        let (block, all) = (self.index.window(node)?, self.sliding.as_mut()?);
        self.index.use_window(node);
        Some(all.pool.share(block.in_pool()).map(|_| block))
    }

    /// The index keeps a block of a lease with a node that has none.
    fn keep_window(&mut self, node: Node, block: SlidingBlock) -> Result<(), PoolError> {
        if let Some(all) = &mut self.sliding {
            all.pool.share(block.in_pool())?;
            self.index.keep_window(node, block);
        }
        Ok(())
    }

    /// A block, free or taken from the index.
    fn take_sliding(&mut self) -> Option<SlidingBlock> {
        if self.sliding.as_ref()?.pool.free() == 0 {
            let block = self.index.evict_window()?;
            self.forget_window(block);
        }
        self.sliding.as_mut()?.pool.allocate().map(SlidingBlock::of)
    }
}

/// Ends a lease's use of a block.
fn give_back(block: SlidingBlock, all: Option<&mut SlidingPool>, index: &mut Index) -> Result<(), PoolError> {
    let Some(all) = all else { return Err(PoolError::NotInUse(block.in_pool())) };
    if let Release::Shared { uses: 1 } = all.pool.release(block.in_pool())? {
        index.leave_window(block);
    }
    Ok(())
}
